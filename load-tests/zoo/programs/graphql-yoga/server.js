// Items in memory, by mutations and queries of GraphQL.
const { createServer } = require('node:http');
const { createSchema, createYoga } = require('graphql-yoga');

const items = [];
const schema = createSchema({
  typeDefs: 'type Query { items: [String!]! } type Mutation { add(name: String!): [String!]! }',
  resolvers: {
    Query: { items: () => items },
    Mutation: {
      add: (_, { name }) => {
        items.push(name);
        return items;
      },
    },
  },
});
createServer(createYoga({ schema })).listen(Number(process.env.PORT), '127.0.0.1');
