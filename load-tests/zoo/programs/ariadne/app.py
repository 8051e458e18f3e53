"""Items in memory, by mutations and queries of GraphQL."""

from ariadne import MutationType, QueryType, make_executable_schema
from ariadne.asgi import GraphQL

items = []
query, mutation = QueryType(), MutationType()


@query.field("items")
def all_items(*_):
    return items


@mutation.field("add")
def add(*_, name):
    items.append(name)
    return items


schema = "type Query { items: [String!]! } type Mutation { add(name: String!): [String!]! }"
app = GraphQL(make_executable_schema(schema, query, mutation))
