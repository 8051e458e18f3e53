// What k6 tells at the end. With SUMMARY=path all of it goes there as JSON, and nothing to standard output, which `make
// load` reads the samples from. Run by hand, it is a few lines of what the scenarios measure.

const path = __ENV.SUMMARY;

const line = (name, { values, thresholds = {} }) => {
  const figures = Object.entries(values).map(([figure, value]) => `${figure} ${Number(value.toPrecision(4))}`);
  const limits = Object.entries(thresholds).map(([limit, { ok }]) => `${ok ? 'met' : 'CROSSED'}: ${limit}`);
  return [name.padEnd(32), figures.join(', '), ...limits].join('  ');
};

export const handleSummary = (data) => {
  if (path) return { [path]: JSON.stringify(data) };
  const ours = Object.entries(data.metrics).filter(([name]) => name.startsWith('fn_'));
  return { stdout: ours.map(([name, metric]) => `${line(name, metric)}\n`).sort().join('') };
};
