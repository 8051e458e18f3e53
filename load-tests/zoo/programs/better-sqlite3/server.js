// Items in a database of SQLite in write-ahead mode, below /tmp.
const Database = require('better-sqlite3');
const express = require('express');

const database = new Database('/tmp/items.db');
database.pragma('journal_mode = WAL');
database.exec('CREATE TABLE IF NOT EXISTS items (name TEXT)');
const insert = database.prepare('INSERT INTO items VALUES (?)');
const select = database.prepare('SELECT name FROM items');

const app = express();
app.get('/', (request, response) => response.send('hello of better-sqlite3'));
app.post('/items/:name', (request, response) => response.json(insert.run(request.params.name)));
app.get('/items', (request, response) => response.json(select.all()));
app.listen(process.env.PORT, '127.0.0.1');
