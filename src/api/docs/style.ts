/** The style sheet of the API reference, which is embedded because the page loads no other resources. */
export const docsStyle = `
:root {
  color-scheme: light dark;
  --page: #ffffff;
  --side: #f7f9fb;
  --raised: #f3f6f9;
  --line: #dfe5ec;
  --text: #17212e;
  --soft: #526071;
  --accent: #0b6285;
  --accent-tint: #e3f1f7;
  --get: #0b5cad;
  --get-tint: #e4effb;
  --post: #0c6b43;
  --post-tint: #def4e9;
  --put: #8a4b08;
  --put-tint: #fdf0dd;
  --delete: #b3261e;
  --delete-tint: #fdeae8;
  --code: #0f1c2b;
  --code-line: #24364a;
  --code-text: #dce6f0;
  --code-soft: #93a6ba;
  --code-key: #8fd0f5;
  --code-string: #a5dfb0;
  --code-value: #f5c584;
  --mono: ui-monospace, SFMono-Regular, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0d141c;
    --side: #0a1017;
    --raised: #17212c;
    --line: #263442;
    --text: #e4ebf2;
    --soft: #9dacbc;
    --accent: #6cc5ec;
    --accent-tint: #12303f;
    --get: #85bdfa;
    --get-tint: #14294a;
    --post: #76d6a4;
    --post-tint: #0f3325;
    --put: #f0b968;
    --put-tint: #3a2810;
    --delete: #ff9d94;
    --delete-tint: #421b19;
    --code: #080d13;
  }
}
*, *::before, *::after { box-sizing: border-box; }
html { scroll-padding-top: 1.5rem; -webkit-text-size-adjust: 100%; }
body {
  margin: 0;
  background: var(--page);
  color: var(--text);
  font: 400 0.9375rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  display: grid;
  grid-template: "side head" auto "side main" 1fr / 18.5rem minmax(0, 1fr);
}
h1, h2, h3, h4, p, ul, pre, table { margin: 0; padding: 0; }
h1, h2, h3 { line-height: 1.25; letter-spacing: -0.015em; text-wrap: balance; }
ul { list-style: none; }
a { color: var(--accent); text-underline-offset: 0.15em; }
code, pre { font-family: var(--mono); }
:not(pre) > code {
  font-size: 0.86em;
  padding: 0.1em 0.35em;
  border-radius: 4px;
  background: var(--raised);
  overflow-wrap: anywhere;
}
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
summary { cursor: pointer; }
.skip { position: absolute; left: 1rem; top: -4rem; padding: 0.5rem 1rem; background: var(--page); z-index: 2; }
.skip:focus { top: 1rem; }

.side {
  grid-area: side;
  position: sticky;
  top: 0;
  height: 100vh;
  overflow-y: auto;
  overscroll-behavior: contain;
  scrollbar-width: thin;
  background: var(--side);
  border-right: 1px solid var(--line);
  padding: 1.5rem 0.875rem 3rem;
  font-size: 0.875rem;
  scroll-target-group: auto;
}
.brand {
  display: flex;
  align-items: center;
  gap: 0.625rem;
  padding: 0 0.625rem 1.125rem;
  font-weight: 650;
  font-size: 0.9375rem;
  color: var(--text);
  text-decoration: none;
}
.mark { width: 1.625rem; height: 1.625rem; flex: none; }
.group > summary, .side .label {
  padding: 0.375rem 0.625rem;
  font-weight: 600;
  font-size: 0.8125rem;
  color: var(--text);
  list-style: none;
  display: flex;
  align-items: center;
  justify-content: space-between;
  border-radius: 6px;
}
.group { margin-top: 0.75rem; }
.group > summary::-webkit-details-marker, .menu > summary::-webkit-details-marker { display: none; }
.count { color: var(--soft); font-weight: 400; font-size: 0.75rem; font-variant-numeric: tabular-nums; }
.side li a {
  display: grid;
  grid-template-columns: 2.75rem 1fr;
  align-items: baseline;
  gap: 0.5rem;
  padding: 0.3125rem 0.625rem;
  border-radius: 6px;
  color: var(--soft);
  text-decoration: none;
  line-height: 1.4;
}
.side li a.plain { display: block; }
.side li a:hover { background: var(--raised); color: var(--text); }
.side li a:target-current { background: var(--accent-tint); color: var(--text); }

.method {
  display: inline-block;
  font: 700 0.6875rem/1 var(--mono);
  letter-spacing: 0.02em;
  padding: 0.3125rem 0.4375rem;
  border-radius: 5px;
  color: var(--soft);
  background: var(--raised);
}
.get { color: var(--get); background: var(--get-tint); }
.post { color: var(--post); background: var(--post-tint); }
.put, .patch { color: var(--put); background: var(--put-tint); }
.delete { color: var(--delete); background: var(--delete-tint); }
.side .method { font-size: 0.59375rem; padding: 0.25rem 0; text-align: center; }

.head, main { padding: 0 clamp(1.25rem, 4vw, 3.5rem); }
.head > *, main > * { max-width: 76rem; }
.head { grid-area: head; padding-top: 3.5rem; }
h1 { font-size: clamp(1.875rem, 4vw, 2.5rem); font-weight: 700; letter-spacing: -0.025em; }
.lead { font-size: 1.125rem; color: var(--soft); margin-top: 0.625rem; }
.facts { display: flex; flex-wrap: wrap; gap: 0.5rem; margin-top: 1.25rem; font-size: 0.8125rem; }
.facts > * { padding: 0.1875rem 0.625rem; border: 1px solid var(--line); border-radius: 99px; color: var(--soft); }
.facts a { color: var(--accent); text-decoration: none; }
.facts a:hover { border-color: var(--accent); }
main { grid-area: main; padding-bottom: 6rem; min-width: 0; }
h2 { font-size: 1.5rem; font-weight: 680; }
h3 { font-size: 1.1875rem; font-weight: 650; }
h4 { font-size: 0.875rem; font-weight: 620; }
.tag > h2 { padding-top: 3.5rem; }
.tag > .lead { font-size: 1rem; margin-top: 0.375rem; max-width: 42rem; }
.operation, .start {
  display: grid;
  grid-template-columns: minmax(0, 1fr) minmax(0, 27rem);
  gap: 1.25rem clamp(1.5rem, 3vw, 3rem);
  padding: 2.25rem 0 2.75rem;
  border-bottom: 1px solid var(--line);
}
.tag:last-child .operation:last-child { border-bottom: 0; }
.start { padding-top: 2.5rem; }
.told { min-width: 0; display: grid; gap: 1.375rem; align-content: start; }
.shown { min-width: 0; display: grid; gap: 1rem; align-content: start; align-self: start; position: sticky; top: 1.5rem; }
.prose { display: grid; gap: 0.625rem; max-width: 42rem; }
.title { display: grid; gap: 0.625rem; }
.title h3 a { color: inherit; text-decoration: none; }
.title h3 a:hover::after { content: " #"; color: var(--soft); font-weight: 400; }
.operation:target .title h3 a { color: var(--accent); }
.call { display: flex; align-items: baseline; gap: 0.625rem; }
.call code { background: none; padding: 0; font-size: 0.875rem; }

.part { display: grid; gap: 0.5rem; }
.part > summary { display: flex; flex-wrap: wrap; align-items: center; gap: 0.375rem 0.5rem; list-style: none; }
.part > summary::-webkit-details-marker { display: none; }
.part > summary::before {
  content: "";
  width: 0.4375rem;
  height: 0.4375rem;
  border: solid var(--soft);
  border-width: 0 2px 2px 0;
  rotate: -45deg;
  margin: 0 0.1875rem 0 0.125rem;
}
.part[open] > summary::before { rotate: 45deg; }
.part > summary + * { margin-top: 0.5rem; }
.hint { color: var(--soft); font-weight: 400; font-size: 0.8125rem; }
.status {
  font: 600 0.75rem/1 var(--mono);
  padding: 0.25rem 0.375rem;
  border-radius: 4px;
  color: var(--soft);
  background: var(--raised);
}
.good { color: var(--post); background: var(--post-tint); }

table { width: 100%; border-collapse: collapse; font-size: 0.84375rem; line-height: 1.5; }
th {
  text-align: left;
  font-weight: 500;
  font-size: 0.75rem;
  color: var(--soft);
  padding: 0.25rem 0.75rem 0.375rem 0;
  border-bottom: 1px solid var(--line);
}
td { vertical-align: top; padding: 0.5rem 0.75rem 0.5rem 0; border-bottom: 1px solid var(--line); }
th:last-child, td:last-child { padding-right: 0; width: 46%; }
tbody tr:last-child td { border-bottom: 0; }
td > code.name { background: none; padding: 0; font-weight: 600; font-size: 0.8125rem; white-space: nowrap; }
.type { font: 0.78125rem/1.6 var(--mono); color: var(--soft); }
.must { color: var(--delete); font-size: 0.78125rem; font-weight: 600; }
.sure { color: var(--post); font-size: 0.78125rem; }
.may { color: var(--soft); font-size: 0.78125rem; }
.option td { font-style: italic; color: var(--soft); }
@media (min-width: 40.0625rem), print {
  .d1 td:first-child { padding-left: 1rem; }
  .d2 td:first-child { padding-left: 2rem; }
  .d3 td:first-child { padding-left: 3rem; }
  .d4 td:first-child { padding-left: 4rem; }
  .d5 td:first-child { padding-left: 5rem; }
  .d1 td:first-child, .d2 td:first-child, .d3 td:first-child, .d4 td:first-child, .d5 td:first-child {
    background: linear-gradient(var(--line), var(--line)) no-repeat 0.25rem 0 / 1px 100%;
  }
}
.rules { display: flex; flex-wrap: wrap; gap: 0.25rem 0.625rem; color: var(--soft); font-size: 0.78125rem; }
p + .rules { margin-top: 0.25rem; }
.errors th:last-child, .errors td:last-child { width: auto; }
.errors td:first-child { width: 4rem; }

.sample { margin: 0; border: 1px solid var(--code-line); border-radius: 10px; overflow: hidden; background: var(--code); }
.sample figcaption {
  display: flex;
  align-items: center;
  justify-content: space-between;
  gap: 0.75rem;
  padding: 0.5rem 0.875rem;
  border-bottom: 1px solid var(--code-line);
  color: var(--code-soft);
  font-size: 0.78125rem;
}
.sample pre {
  padding: 0.75rem 0.875rem 0.875rem;
  max-height: 26rem;
  overflow: auto;
  scrollbar-width: thin;
  scrollbar-color: var(--code-line) transparent;
  color: var(--code-text);
  font-size: 0.78125rem;
  line-height: 1.65;
  tab-size: 2;
}
.sample pre:focus-visible { outline: 2px solid var(--code-key); outline-offset: -3px; }
.sample .all { user-select: all; }
.sample .k { color: var(--code-key); }
.sample .s { color: var(--code-string); }
.sample .v { color: var(--code-value); }

[hidden] { display: none !important; }
search { position: sticky; top: -1.5rem; z-index: 1; display: flex; align-items: center; gap: 0.5rem; padding: 0.5rem 0; background: var(--side); }
input, textarea, button { font: inherit; color: inherit; border-radius: 6px; border: 1px solid var(--line); }
input, textarea { width: 100%; min-width: 0; padding: 0.375rem 0.625rem; background: var(--page); }
textarea, .request input { font: 0.8125rem/1.6 var(--mono); }
button { padding: 0.375rem 0.875rem; font-size: 0.8125rem; font-weight: 600; background: var(--accent-tint); color: var(--accent); cursor: pointer; }
button:disabled { opacity: 0.5; cursor: default; }
#matches { flex: none; color: var(--soft); font-size: 0.75rem; font-variant-numeric: tabular-nums; }
.token, .request label { display: grid; gap: 0.25rem; font-size: 0.8125rem; }
.token { max-width: 30rem; }
.try { border: 1px solid var(--line); border-radius: 10px; padding: 0.5rem 0.875rem; min-width: 0; }
.try > summary { font-weight: 600; font-size: 0.8125rem; color: var(--accent); }
.request { display: grid; gap: 0.75rem; padding: 0.75rem 0 0.375rem; min-width: 0; }
.request .actions { display: flex; gap: 0.5rem; }
.request pre {
  max-height: 26rem;
  overflow: auto;
  padding: 0.75rem 0.875rem;
  border-radius: 8px;
  background: var(--code);
  color: var(--code-text);
  font-size: 0.78125rem;
  line-height: 1.65;
}
.outcome { font: 0.78125rem/1.6 var(--mono); color: var(--soft); overflow-wrap: anywhere; }
@media (min-width: 56.0625rem) {
  @supports selector(::details-content) {
    .menu > summary { display: none; }
    .menu::details-content { content-visibility: visible; }
  }
}
@media (max-width: 92rem) {
  .operation, .start { grid-template-columns: minmax(0, 1fr); }
  .shown { position: static; }
}
@media (max-width: 56rem) {
  body { grid-template: "head" auto "side" auto "main" 1fr / minmax(0, 1fr); }
  .head { padding-top: 2rem; }
  .side {
    position: static;
    height: auto;
    margin: 1.5rem clamp(1.25rem, 4vw, 3.5rem) 0;
    padding: 0.25rem;
    border: 1px solid var(--line);
    border-radius: 10px;
  }
  .brand { display: none; }
  .menu[open] { padding-bottom: 0.5rem; }
  .menu > summary {
    display: flex;
    justify-content: space-between;
    padding: 0.625rem 0.75rem;
    font-weight: 600;
    list-style: none;
  }
  .menu > summary::after { content: "+"; color: var(--soft); font-weight: 400; }
  .menu[open] > summary::after { content: "–"; }
  .side li a { padding-block: 0.5rem; }
}
@media (max-width: 40rem) {
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table, tbody { display: block; }
  tr { display: flex; flex-wrap: wrap; gap: 0.125rem 0.625rem; align-items: baseline; padding: 0.625rem 0; border-bottom: 1px solid var(--line); }
  tbody tr:last-child { border-bottom: 0; }
  td > code.name { white-space: normal; }
  td, .errors td:first-child { padding: 0; border: 0; width: auto; }
  td:last-child { flex-basis: 100%; }
  td:empty { display: none; }
  .errors td:last-child { flex: 1 0 70%; }
  .d1 { margin-left: 0.75rem; }
  .d2 { margin-left: 1.5rem; }
  .d3 { margin-left: 2.25rem; }
  .d4, .d5 { margin-left: 3rem; }
  .d1, .d2, .d3, .d4, .d5 { border-left: 1px solid var(--line); padding-left: 0.625rem; }
}
@media print {
  :root { color-scheme: light; --code: #ffffff; --code-text: #17212e; --code-soft: #526071; --code-line: #dfe5ec;
    --code-key: #0b5cad; --code-string: #0c6b43; --code-value: #8a4b08; }
  body { display: block; font-size: 10pt; }
  .side, .skip, .try, .token { display: none; }
  .operation, .start { display: block; padding: 1rem 0; }
  .shown, .part, .title { margin-top: 0.75rem; position: static; }
  .sample { margin-top: 0.75rem; }
  .sample pre { max-height: none; white-space: pre-wrap; }
  .part::details-content { content-visibility: visible; }
  tr, .sample, .title { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; }
}
`
