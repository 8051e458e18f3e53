// An OpenID Connect provider for tests: panva's oidc-provider, with people who sign in by any password, a public client
// for `fn login`, and a machine that gets JWT access tokens. Prints its address when it serves.
// usage: node provider.mjs SECONDS    (how long its ID tokens last)

import http from 'node:http';
import { Provider } from 'oidc-provider';

const lasts = Number(process.argv[2] ?? 300);
const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const address = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(address, {
    clients: [
      {
        client_id: 'fn-cli',
        token_endpoint_auth_method: 'none',
        grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token'],
        redirect_uris: [],
        response_types: [],
      },
      {
        client_id: 'ci',
        client_secret: 'of-the-machine',
        grant_types: ['client_credentials'],
        redirect_uris: [],
        response_types: [],
      },
    ],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
    // Their claims are in the ID token, as most providers have it.
    conformIdTokenClaims: false,
    findAccount: (ctx, id) => ({
      accountId: id,
      claims: () => ({
        sub: id,
        email: `${id}@example.com`,
        email_verified: id !== 'eve',
        groups: id === 'ada' ? ['ops', 'dev'] : ['dev'],
      }),
    }),
    features: {
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        getResourceServerInfo: () => ({
          scope: 'deploy',
          audience: 'rekindle',
          accessTokenFormat: 'jwt',
          accessTokenTTL: 300,
        }),
      },
    },
    ttl: {
      IdToken: lasts, AccessToken: 300, DeviceCode: 120, RefreshToken: 3600, Grant: 3600, Session: 3600,
      Interaction: 600,
    },
  });
  server.on('request', provider.callback());
  console.log(address);
});
// It goes with whoever started it.
process.stdin.resume();
process.stdin.on('end', () => process.exit());
