"""Prices an order: the query and the answer are validated by pydantic. /openapi.json describes it."""

from decimal import Decimal
from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel, computed_field

PRICES = {"tea": Decimal("4.20"), "coffee": Decimal("6.35"), "cocoa": Decimal("5.15")}


class Line(BaseModel):
    article: str
    quantity: int
    price: Decimal

    @computed_field
    def total(self) -> Decimal:
        return self.price * self.quantity


class Order(BaseModel):
    lines: list[Line]

    @computed_field
    def total(self) -> Decimal:
        return sum(line.total for line in self.lines)


app = FastAPI(title="Orders")


@app.get("/")
async def order(quantity: Annotated[int, Query(ge=1, le=1000)] = 3) -> Order:
    return Order(lines=[Line(article=a, quantity=quantity, price=p) for a, p in PRICES.items()])
