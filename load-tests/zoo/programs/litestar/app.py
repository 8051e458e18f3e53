"""Items in memory, by Litestar."""

from litestar import Litestar, MediaType, get, post

items: list[str] = []


@get("/", media_type=MediaType.TEXT, sync_to_thread=False)
def hello() -> str:
    return "hello of Litestar"


@post("/items/{name:str}", sync_to_thread=False)
def add(name: str) -> list[str]:
    items.append(name)
    return items


@get("/items", sync_to_thread=False)
def all_items() -> list[str]:
    return items


app = Litestar([hello, add, all_items])
