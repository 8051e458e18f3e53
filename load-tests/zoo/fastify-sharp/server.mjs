// A picture of the width ?width= (16 to 2000), rendered from SVG, blurred, turned and compressed as PNG.
import Fastify from 'fastify';
import sharp from 'sharp';

const circle = (n) => `<circle cx="${n * 20}" cy="${(n * 53) % 400}" r="${10 + n}" fill="hsl(${n * 9},80%,50%)"/>`;
const circles = Array.from({ length: 40 }, (_, n) => circle(n));
const svg = Buffer.from(`<svg xmlns="http://www.w3.org/2000/svg" width="800" height="400">${circles.join('')}</svg>`);
const width = { type: 'integer', minimum: 16, maximum: 2000, default: 320 };
const querystring = { type: 'object', properties: { width } };

const app = Fastify({ logger: true });
app.get('/', { schema: { querystring } }, async (request, reply) => {
  const picture = sharp(svg).resize({ width: request.query.width }).blur(2).rotate(10, { background: '#fff' });
  return reply.type('image/png').send(await picture.png({ compressionLevel: 9 }).toBuffer());
});
await app.listen({ port: Number(process.env.PORT), host: '127.0.0.1' });
