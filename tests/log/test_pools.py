"""Pools: what is remembered for many clients."""

from __future__ import annotations

from hypothesis import given, strategies

from headwater.log.pools import Pools


def test_who_has_too_many_loses_its_own_oldest_and_others_nothing() -> None:
    pools: Pools[str] = Pools(2, 100)
    for key in ("a1", "a2", "b1"):
        assert pools.use(key, key[0]) == []
    assert pools.use("a1", "a") == []
    assert pools.use("a3", "a") == ["a2"]
    assert [key in pools for key in ("a1", "a2", "a3", "b1")] == [True, False, True, True]


def test_what_is_nobody_s_counts_among_all_alone() -> None:
    pools: Pools[int] = Pools(2, 5)
    for key in range(5):
        assert pools.use(key, "") == []
    assert pools.use(5, "somebody") == [0]
    assert len(pools) == 5


def test_where_all_is_taken_whoever_has_most_loses() -> None:
    pools: Pools[str] = Pools(10, 5)
    for key in ("a1", "a2", "a3", "a4"):
        pools.use(key, "a")
    assert pools.use("b1", "b") == []
    assert pools.use("b2", "b") == ["a1"]
    assert pools.use("c1", "c") == ["a2"]


def test_a_key_that_another_uses_is_the_other_s() -> None:
    pools: Pools[str] = Pools(1, 5)
    pools.use("x", "a")
    pools.use("x", "b")
    assert pools.use("y", "a") == []
    assert pools.use("z", "b") == ["x"]


@given(
    strategies.lists(strategies.tuples(strategies.integers(0, 12), strategies.sampled_from(["", "a", "b", "c"]))),
    strategies.integers(1, 4),
    strategies.integers(1, 8),
)
def test_it_does_what_a_model_does(uses: list[tuple[int, str]], per_owner: int, in_all: int) -> None:
    pools: Pools[int] = Pools(per_owner, in_all)
    model: dict[int, str] = {}  # in the order of use
    for key, owner in uses:
        gone = pools.use(key, owner)
        model.pop(key, None)
        model[key] = owner
        for one in gone:
            sizes = [sum(other == name for other in model.values()) for name in model.values()]
            mine = sizes[list(model).index(one)]
            assert one == next(other for other, name in model.items() if name == model[one])
            assert (model[one] == owner and owner and mine > per_owner) or mine == max(sizes)
            del model[one]
        assert len(pools) == len(model) <= in_all
        assert all(sum(name == one for name in model.values()) <= per_owner for one in "abc")
        assert all(one in pools for one in model)
