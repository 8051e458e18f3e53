"""A library's books by author, through SQLAlchemy's ORM; ?author= filters."""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402

from flask import Flask, jsonify, request  # noqa: E402
from flask_sqlalchemy import SQLAlchemy  # noqa: E402
from gevent.pywsgi import WSGIServer  # noqa: E402

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:////tmp/library.db"
db = SQLAlchemy(app)


class Author(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    name = db.Column(db.String(40), unique=True)
    books = db.relationship("Book", back_populates="author")


class Book(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    title = db.Column(db.String(80))
    pages = db.Column(db.Integer)
    author_id = db.Column(db.ForeignKey("author.id"))
    author = db.relationship("Author", back_populates="books")


@app.get("/")
def authors():
    wanted = db.select(Author.name, db.func.count(Book.id), db.func.sum(Book.pages)).join(Author.books)
    if name := request.args.get("author"):
        wanted = wanted.where(Author.name == name)
    found = db.session.execute(wanted.group_by(Author.id).order_by(Author.id))
    return jsonify([{"author": a, "books": n, "pages": p} for a, n, p in found])


with app.app_context():
    db.create_all()
    for number in range(1, 21):
        books = [Book(title=f"volume {volume}", pages=100 * number + volume) for volume in range(1, 51)]
        db.session.add(Author(name=f"author {number}", books=books))
    db.session.commit()

WSGIServer(("127.0.0.1", int(os.environ["PORT"])), app).serve_forever()
