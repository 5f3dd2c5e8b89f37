"""What settings may be given as, for type checkers: numbers, or texts such as "64MiB" and "7d".

Of a setting that has been given only the number is left, which is what `config.py` says of it.
"""

from __future__ import annotations

from typing import Generic, Literal, TypedDict, TypeVar

R = TypeVar("R")
"""`headwater.Retention`."""
Size = int | str
"""Bytes: `64 << 20`, or "64MiB"."""
Duration = float | str
"""Seconds: `90`, or "90s", "15m", "12h", "7d"."""


class GivenRetention(TypedDict, total=False):
    """What `headwater.Retention` takes."""

    age_s: Duration
    bytes: Size
    hard_bytes: Size
    hard_age_s: Duration
    lake_age_s: Duration
    lake_bytes: Size


class GivenConfig(TypedDict, Generic[R], total=False):
    """What `headwater.Config` takes."""

    topic_bytes_max: Size
    topic_levels_max: int
    root_bytes_max: Size
    roots_max: int
    roots_per_client_max: int
    topics_per_root_max: int
    topics_per_client_max: int
    purges_max: int
    match_cache_topics: int
    match_cache_changes: int
    message_bytes_max: Size
    batch_bytes_max: Size
    headers_max: int
    header_bytes_max: Size
    key_bytes_max: Size
    compression: Literal["none", "zstd"]
    compression_bytes_min: Size
    producer_window: int
    producers_max: int
    producers_per_client_max: int
    producer_bytes_max: Size
    segment_bytes: Size
    preallocate_bytes: Size
    journal_bytes: Size
    bulk_bytes_min: Size
    group_bytes_max: Size
    group_messages_max: int
    tail_bytes: Size
    tails_bytes: Size
    page_cache_bytes: Size
    read_bytes: Size
    open_files_max: int
    checkpoint_bytes: Size
    checkpoint_batches: int
    checkpoint_topics: int
    state_snapshots_max: int
    state_snapshot_every_s: Duration
    disk_free_bytes_min: Size
    retention: R
    retention_roots: dict[str, R]
    retention_interval_s: Duration
    lake: str
    erase_within_s: Duration
    retained_per_root_max: int
    retained_bytes_per_root_max: Size
    delayed_max: int
    delayed_per_client_max: int
    delay_s_max: Duration
    schedules_max: int
    schedules_per_client_max: int
    schedule_bytes_max: Size
    schemas_max: int
    schema_bytes_max: Size
    schema_depth_max: int
    schema_payload_bytes_max: Size
    schema_recent_messages: int
    stage_age_s: Duration
    stage_bytes_max: Size
    stage_bytes_per_client_max: Size
    subscriptions_max: int
    subscriptions_per_client_max: int
    filter_patterns_per_client_max: int
    filter_patterns_max: int
    subscription_id_bytes_max: Size
    max_in_flight_max: int
    errors_kept: int
    error_bytes_max: Size
    retry_delay_s: Duration
    retry_delay_s_max: Duration
    retry_jitter: float
    held_max: int
    dead_letters_max: int
    dead_letters_per_client_max: int
    dead_letter_bytes_per_client_max: Size
    dead_letter_age_s: Duration
    states: Literal["off", "stream"]
    states_waiting_max: int
    states_waiting_per_client_max: int
    dead_topics: bool
    dead_topics_waiting_max: int
    dead_topics_waiting_per_client_max: int
    mended_per_client_max: int
    mended_bytes_per_client_max: Size
    live_messages_max: int
    live_bytes_max: Size
    audit_bytes_max: Size
    events_kept: int
    requests_max: int
    request_timeout_s: Duration
    sql_memory_bytes: Size


class GivenConnecting(TypedDict, total=False):
    """What `headwater.Connecting` takes."""

    connect_timeout_s: Duration
    request_timeout_s: Duration
    reconnect_delay_s: Duration
    reconnect_delay_s_max: Duration
    silence_s_max: Duration
    reconnect_s_max: Duration | None
    session_expire_after_s: Duration | None
    prefetch_messages: int
    prefetch_bytes: Size
    publish_gather_messages_max: int
    publish_gather_bytes_max: Size
    publish_bytes_in_flight_max: Size
    requests_max: int
    answer_timeout_s: Duration
    sql_memory_bytes: Size
    frame_bytes_max: Size
    write_bytes_max: Size
