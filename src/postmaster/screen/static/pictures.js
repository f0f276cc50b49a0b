// The two pictures, drawn with Cytoscape.js: the map of the office and the timeline of a flow. Each has its words below.
"use strict";
(() => {
  const VENDOR = ["/static/vendor/cytoscape.min.js", "/static/vendor/cytoscape-dagre.min.js"];
  let loaded = null;

  function load() {
    loaded ||= VENDOR.reduce((before, address) => before.then(() => new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = done;
      script.onerror = failed;
      document.head.append(script);
    })), Promise.resolve());
    return loaded;
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [LANE, ROW, LEFT] = [240, 46, 250];  // pixels: of a lane, of a message, and what stands left of the lanes
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

  function style() {
    const [text, ground, pane, edge, bad] = ["--text", "--ground", "--pane", "--edge", "--bad"].map(colour);
    return [
      { selector: "node[label]", style: { label: "data(label)" } },
      { selector: "node", style: {
        shape: "round-rectangle", width: (node) => 16 + 7.2 * String(node.data("label") || "").length, height: 28,
        "text-valign": "center", "text-halign": "center", "font-size": 12, "background-color": pane, color: text,
        "border-width": 1, "border-color": edge } },
      { selector: "node.lost", style: { "border-color": bad, "border-style": "dashed", color: bad } },
      { selector: "node.point", style: { label: "", width: 6, height: 6, shape: "ellipse", "background-color": edge } },
      { selector: "node.word", style: { "background-opacity": 0, "border-width": 0, width: 1, height: 1, "font-size": 11, "text-halign": "left" } },
      { selector: "edge[label]", style: { label: "data(label)" } },
      { selector: "edge", style: {
        width: 1.5, "line-color": edge, "target-arrow-color": edge, "target-arrow-shape": "triangle",
        "curve-style": "bezier", "font-size": 11, color: text, "text-background-color": ground,
        "text-background-opacity": 0.9, "text-background-padding": "2px" } },
      { selector: "edge.lane", style: { "target-arrow-shape": "none", "line-style": "dotted", width: 1 } },
      { selector: "edge.bad", style: { "line-color": bad, "target-arrow-color": bad, "line-style": "dashed", color: bad } },
    ];
  }

  function mapElements(data) {
    const found = data.agents.map((agent) => ({ data: { id: "a:" + agent.id, label: agent.id } }));
    const known = new Set(data.agents.map((agent) => agent.id));
    const lost = new Set();
    data.edges.forEach((edge, number) => {
      const held = edge.agent && known.has(edge.agent);
      const target = held ? "a:" + edge.agent : "x:" + edge.to;
      if (!held && !lost.has(target)) { lost.add(target); found.push({ data: { id: target, label: edge.to }, classes: "lost" }); }
      found.push({
        data: { id: "e" + number, source: "a:" + edge.from, target, label: `${edge.type} (${edge.count})` },
        classes: edge.state === "ok" ? "" : "bad",
      });
    });
    return found;
  }

  // A sequence diagram: a lane for each address, time from the top down.
  function timelineElements(data) {
    const [WIDTH, HEIGHT] = [LANE, ROW];
    const found = [];
    const bottom = (data.messages.length + 1) * HEIGHT;
    data.lanes.forEach((lane, x) => {
      found.push({ data: { id: "l" + x, label: short(lane, 30) }, position: { x: x * WIDTH, y: 0 } });
      found.push({ data: { id: "b" + x }, position: { x: x * WIDTH, y: bottom }, classes: "point" });
      found.push({ data: { source: "l" + x, target: "b" + x }, classes: "lane" });
    });
    data.messages.forEach((one, row) => {
      const y = (row + 1) * HEIGHT;
      const ends = [one.from, one.to].map((lane, end) => {
        const id = `m${row}-${end}`;
        found.push({ data: { id }, position: { x: lane * WIDTH + (end && one.from === one.to ? 60 : 0), y }, classes: "point" });
        return id;
      });
      const bad = one.state === "dead" || one.state === "returned" ? "bad" : "";
      const label = `${short(one.label, 24)} · ${one.state}`;
      found.push({ data: { id: "m" + row, source: ends[0], target: ends[1], label }, classes: bad });
      const when = one.time.slice(0, 19).replace("T", " ") + (one.waited ? ` (+${one.waited})` : "");
      found.push({ data: { id: "w" + row, label: when }, position: { x: -24, y }, classes: "word" });
    });
    return found;
  }

  async function drawInto(target) {
    const answer = await fetch(target.dataset.source);
    if (!answer.ok) return;
    const data = await answer.json();
    await load();
    if (!target.isConnected) return;
    const isMap = target.dataset.picture === "map";
    if (target.picture) target.picture.destroy();
    target.classList.add("drawn");
    if (!isMap) {
      target.style.width = `${LEFT + data.lanes.length * LANE}px`;
      target.style.height = `${(data.messages.length + 2) * ROW}px`;
    }
    const layout = isMap ? { name: "dagre", rankDir: "LR", nodeSep: 40, rankSep: 150 } : { name: "preset" };
    target.picture = window.cytoscape({
      container: target,
      elements: isMap ? mapElements(data) : timelineElements(data),
      style: style(),
      layout: { ...layout, fit: isMap, padding: 20 },
      ...(isMap ? {} : { zoom: 1, pan: { x: LEFT - 10, y: 24 }, userPanningEnabled: false }),
      userZoomingEnabled: false,
      autoungrabify: true,
      boxSelectionEnabled: false,
      maxZoom: 1.4,
    });
    target.picture.autounselectify(true);
    target.dataset.drawn = String(target.picture.edges().length);
  }

  // Draw what is on the page and not drawn yet; `again`: what is drawn, too, as there is news.
  function draw(again) {
    document.querySelectorAll("[data-picture]").forEach((target) => {
      if (again || !target.picture) drawInto(target).catch((fault) => console.warn("no picture:", fault));
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  window.postmasterPictures = { draw };
})();
