// The tree of topics: rows as the server gives them, of which only those in sight are in the document.
// Keys as in every tree: up and down, right opens, left closes or goes up, Enter selects.
export default {
  template: `
    <q-virtual-scroll class="hw-tree" role="tree" aria-label="Topics" tabindex="-1" ref="scroll"
        :items="shown" :virtual-scroll-item-size="34" v-slot="{ item, index }">
      <div :key="item.key" class="hw-tree-row" role="treeitem" :data-at="index" :tabindex="index === at ? 0 : -1"
          :aria-level="item.depth + 1" :aria-selected="item.selected ? 'true' : 'false'"
          :aria-expanded="item.leaf || item.more ? null : String(item.open)"
          :style="{ paddingLeft: 8 + 16 * item.depth + 'px' }"
          @click="activate(item, index)" @focus="at = index" @keydown="onKey($event, item, index)">
        <template v-if="item.more"><q-icon name="more_horiz" /><span class="hw-tree-name">More…</span></template>
        <template v-else>
          <q-icon class="hw-tree-arrow" :name="item.leaf ? 'fiber_manual_record' : item.open ? 'expand_more' : 'chevron_right'"
              :data-leaf="item.leaf ? 1 : null" @click.stop="item.leaf ? activate(item, index) : toggle(item, index)" />
          <span class="hw-tree-name">{{ item.name }}</span>
          <q-icon v-if="item.retained" name="push_pin" class="hw-tree-pin"><q-tooltip>has a retained value</q-tooltip></q-icon>
          <span class="hw-tree-rate">{{ item.rate }}</span>
          <span class="hw-tree-count">{{ item.messages }}</span>
        </template>
      </div>
    </q-virtual-scroll>`,
  props: { rows: Array },
  data() {
    return { shown: this.rows, at: 0 };
  },
  mounted() {
    // Between the tree and its rows nothing may take the focus.
    this.$el.querySelector(".q-virtual-scroll__content")?.removeAttribute("tabindex");
  },
  watch: {
    rows(rows) {
      // The row that has the focus keeps it, wherever it stands now.
      const had = this.$el.contains(document.activeElement);
      const key = this.shown[this.at]?.key;
      const now = rows.findIndex((row) => row.key === key);
      this.at = now >= 0 ? now : Math.max(0, Math.min(this.at, rows.length - 1));
      this.shown = rows;
      if (had) this.$nextTick(() => this.isFree() && this.go(this.at));
    },
  },
  methods: {
    patch(changes) {
      for (const [at, figures] of Object.entries(changes)) if (this.shown[at]) Object.assign(this.shown[at], figures);
    },
    toggle(item, index) {
      this.at = index;
      this.$emit("toggle", item.path);
    },
    activate(item, index) {
      this.at = index;
      if (item.more) this.$emit("more", item.path);
      else {
        this.$emit("select", item.path);
        if (!item.leaf && !item.open) this.$emit("toggle", item.path);
      }
    },
    go(index, tries = 5) {
      if (index < 0 || index >= this.shown.length) return;
      this.at = index;
      const row = this.$el.querySelector(`[data-at="${index}"]`);
      if (row) row.focus();
      else this.$refs.scroll.scrollTo(index);
      // A row that comes into sight, or is drawn anew, is there a moment later.
      if (tries) setTimeout(() => this.at === index && this.isFree() && this.isElsewhere(index) && this.go(index, tries - 1), 40);
    },
    isElsewhere(index) {
      return document.activeElement?.dataset?.at !== String(index);
    },
    isFree() {
      // Whoever went on to something else meanwhile is not called back.
      return document.activeElement === document.body || this.$el.contains(document.activeElement);
    },
    parent(index) {
      const depth = this.shown[index].depth;
      while (index >= 0 && this.shown[index].depth >= depth) index--;
      return index;
    },
    onKey(event, item, index) {
      const done = {
        ArrowDown: () => this.go(index + 1),
        ArrowUp: () => this.go(index - 1),
        Home: () => this.go(0),
        End: () => this.go(this.shown.length - 1),
        ArrowRight: () => (item.leaf || item.more ? null : item.open ? this.go(index + 1) : this.toggle(item, index)),
        ArrowLeft: () => (item.open && !item.leaf ? this.toggle(item, index) : this.go(this.parent(index))),
        Enter: () => this.activate(item, index),
        " ": () => this.activate(item, index),
      }[event.key];
      if (!done) return;
      event.preventDefault();
      done();
    },
  },
};
