// The order of what a search on the site finds: guides first, then the reference, then specifications and decisions.

var Scorer = {
  score: ([name, , , , score]) =>
    score - (/^specs\/decisions\/|^CHANGELOG/.test(name) ? 60 : /^specs\//.test(name) ? 40 : /\/api\//.test(name) ? 10 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
