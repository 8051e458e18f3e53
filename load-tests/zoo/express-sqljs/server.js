// Routes of a railway: a recursive query finds what is reached from ?from=, and Pug renders it.
const express = require('express');
const initSqlJs = require('sql.js');

const REACHED = `
  WITH RECURSIVE reached(station, minutes) AS (
    SELECT $from, 0
    UNION
    SELECT l.target, r.minutes + l.minutes FROM links l JOIN reached r ON l.source = r.station WHERE r.minutes < 120
  )
  SELECT station, min(minutes) AS minutes FROM reached GROUP BY station ORDER BY minutes, station`;

async function main() {
  const SQL = await initSqlJs();
  const database = new SQL.Database();
  database.run('CREATE TABLE links (source INTEGER, target INTEGER, minutes INTEGER)');
  const insert = database.prepare('INSERT INTO links VALUES (?, ?, ?)');
  for (let n = 0; n < 200; n++) {
    insert.run([n, (n + 1) % 200, 7]);
    insert.run([n, (n * 3 + 1) % 200, 15]);
  }
  insert.free();

  const app = express();
  app.set('view engine', 'pug');
  app.set('views', __dirname);
  app.get('/', (request, response) => {
    const [{ values }] = database.exec(REACHED, { $from: Number(request.query.from ?? 0) });
    response.render('reached', { values });
  });
  app.listen(process.env.PORT, '127.0.0.1');
}

main();
