// Rendered on the server at every request: the primes up to ?limit=, and a button that the browser makes interactive.
import Counter from './counter';

function primes(limit) {
  const composite = new Uint8Array(limit + 1);
  const found = [];
  for (let n = 2; n <= limit; n++) {
    if (composite[n]) continue;
    found.push(n);
    for (let multiple = n * n; multiple <= limit; multiple += n) composite[multiple] = 1;
  }
  return found;
}

export default async function Page({ searchParams }) {
  const limit = Math.min(Number(searchParams.limit ?? 1000), 100_000);
  const found = primes(limit);
  return (
    <main>
      <h1>{`${found.length} primes up to ${limit}`}</h1>
      <ol>
        {found.map((n) => (
          <li key={n}>{n}</li>
        ))}
      </ol>
      <Counter start={found.length} />
    </main>
  );
}
