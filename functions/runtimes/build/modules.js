// Prints the modules below /usr/share/nodejs that npm and node-gyp load, by what they say they depend on.
const fs = require('node:fs');
const path = require('node:path');

const ALL = '/usr/share/nodejs';
const needed = new Set();

function folders(modules) {
  const names = fs.existsSync(modules) ? fs.readdirSync(modules) : [];
  return names.flatMap((name) => {
    const folder = path.join(modules, name);
    return name.startsWith('@') ? folders(folder) : [folder];
  });
}

function visit(folder) {
  const file = path.join(folder, 'package.json');
  if (!fs.existsSync(file)) return;
  const { dependencies, optionalDependencies } = JSON.parse(fs.readFileSync(file, 'utf8'));
  for (const name of Object.keys({ ...dependencies, ...optionalDependencies })) {
    // What npm brings in its own node_modules is there already.
    if (needed.has(name) || !fs.existsSync(path.join(ALL, name))) continue;
    needed.add(name);
    visit(path.join(ALL, name));
  }
  folders(path.join(folder, 'node_modules')).forEach(visit);
}

for (const program of ['npm', 'node-gyp']) visit(path.join(ALL, program));
console.log([...needed].sort().join('\n'));
