// What the theme leaves out for keyboards and screen readers: wide tables and drawings can be scrolled, and the buttons of each code have a name.
const mend = () => {
  document.querySelectorAll('.md-typeset__scrollwrap, p:has(> img[src$=".svg"])').forEach((wrap) => { wrap.tabIndex = 0; });
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code ${at + 1}`));
};
new MutationObserver(mend).observe(document.documentElement, { childList: true, subtree: true });
mend();
