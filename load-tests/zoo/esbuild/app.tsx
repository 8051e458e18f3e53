// A page with a list that grows, in Preact.
import { render } from 'preact';
import { useState } from 'preact/hooks';

function List() {
  const [items, setItems] = useState<number[]>([1, 2, 3]);
  return (
    <ul onClick={() => setItems([...items, items.length + 1])}>
      {items.map((n) => (
        <li key={n}>{n}</li>
      ))}
    </ul>
  );
}

render(<List />, document.body);
