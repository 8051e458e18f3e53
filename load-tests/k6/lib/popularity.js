// Heavy-tailed popularity: of `count` things the k-th is chosen with a weight of 1/k^exponent (Zipf).

export const zipfian = (count, exponent) => {
  const cumulative = [];
  let sum = 0;
  for (let k = 1; k <= count; k += 1) {
    sum += 1 / k ** exponent;
    cumulative.push(sum);
  }
  // The index of one thing, from 0.
  return () => {
    const at = Math.random() * sum;
    return cumulative.findIndex((upTo) => at < upTo);
  };
};
