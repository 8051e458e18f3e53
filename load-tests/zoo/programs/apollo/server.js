// Items in memory, by mutations and queries of GraphQL.
const { ApolloServer } = require('@apollo/server');
const { startStandaloneServer } = require('@apollo/server/standalone');

const items = [];
const server = new ApolloServer({
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
startStandaloneServer(server, { listen: { port: Number(process.env.PORT), host: '127.0.0.1' } });
