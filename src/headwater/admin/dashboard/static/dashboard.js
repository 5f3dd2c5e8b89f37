// What the pages need from the browser: the newest points of charts, and whether anybody sees the page.
window.headwater = {
  push(id, points, keep) {
    const chart = getElement(id)?.chart;
    if (!chart) return;
    const data = (chart.hwPoints ??= chart.getOption().dataset[0].source.slice());
    const newest = data.length ? data[data.length - 1][0] : 0;
    data.push(...points.filter((point) => point[0] > newest));
    if (data.length > keep) data.splice(0, data.length - keep);
    chart.setOption({ dataset: { source: data } });
  },
  replace(id, points, span_s) {
    const chart = getElement(id)?.chart;
    if (!chart) return;
    chart.hwPoints = points;
    chart.setOption({ dataset: { source: points }, xAxis: { min: (ends) => headwater.first(ends, span_s) } });
  },
  first(ends, span_s) {
    // Where an axis of time begins: as long ago as was asked for, though nothing was sampled then.
    return isFinite(ends.max) ? Math.min(ends.min, ends.max - 1000 * span_s) : null;
  },
  muted() {
    return getComputedStyle(document.body).getPropertyValue("--hw-muted").trim();
  },
  repaint() {
    // What a chart has drawn stays as it is when the theme is turned.
    const label = { color: headwater.muted() };
    for (const place of document.querySelectorAll(".hw-chart"))
      getElement(Number(place.id.slice(1)))?.chart?.setOption({
        legend: { textStyle: label },
        xAxis: { axisLabel: label },
        yAxis: { axisLabel: label, splitLine: { lineStyle: label } },
      });
  },
  brief(value) {
    for (const [bound, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (value >= bound) return +(value / bound).toPrecision(3) + unit;
    return +value.toPrecision(3) + "";
  },
};
document.documentElement.lang = "en";
document.addEventListener("visibilitychange", () => emitEvent("hw-hidden", document.hidden));
new MutationObserver(headwater.repaint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
