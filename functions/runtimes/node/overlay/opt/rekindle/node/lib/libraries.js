// Libraries of npm that draw from a generator, or count, of their own, in numbers that no search of the memory finds.
// Each is changed as it is loaded; what the program calls stays the same.
//
//   jsrsasign, jsbn   RC4, seeded once: each byte is mixed with one of node:crypto
//   sjcl              Fortuna, which takes a new seed only after 30 s: the same, by words
//   hyperid           an id drawn at the start and a counter: a copy begins with another id
//
// A library that is part of a bundle is not seen.
'use strict';

const Module = require('node:module');

const FILE =
  /[\\/]node_modules[\\/](jsrsasign|jsbn|sjcl|hyperid)[\\/](?:lib[\\/])?(?:jsrsasign|index|sjcl|hyperid)\.js$/;

/**
 * Changes libraries that are loaded from now on. `once` gives a function that calls another once in each other copy.
 */
function watch(crypto, once) {
  const change = { jsrsasign: mixSecureRandom, jsbn: mixSecureRandom, sjcl: mixWords, hyperid: beginAnew };
  const load = Module._extensions?.['.js'];
  if (typeof load !== 'function') return;
  Module._extensions['.js'] = function (module, file, ...more) {
    const loaded = load.call(this, module, file, ...more);
    const library = FILE.exec(file)?.[1];
    if (library !== undefined) change[library](module);
    return loaded;
  };

  function mixSecureRandom({ exports }) {
    const { prototype } = exports?.SecureRandom ?? {};
    const nextBytes = prototype?.nextBytes;
    if (typeof nextBytes !== 'function') return;
    prototype.nextBytes = function (bytes) {
      nextBytes.call(this, bytes);
      if (!(bytes.length > 0)) return;
      const fresh = crypto.randomBytes(bytes.length);
      for (let i = 0; i < bytes.length; i++) bytes[i] ^= fresh[i];
    };
  }

  function mixWords({ exports }) {
    const generator = exports?.random;
    const randomWords = generator?.randomWords;
    if (typeof randomWords !== 'function') return;
    generator.randomWords = function (...parameters) {
      const words = randomWords.apply(this, parameters);
      const fresh = crypto.randomBytes(words.length * 4);
      return words.map((word, i) => word ^ fresh.readInt32LE(i * 4));
    };
  }

  function beginAnew(module) {
    const make = module.exports;
    if (typeof make !== 'function') return;
    module.exports = Object.assign(function hyperid(options) {
      let next = make(options);
      const again = once(() => (next = make(options)));
      const generate = () => {
        again();
        const id = next();
        generate.uuid = next.uuid;
        return id;
      };
      return Object.assign(generate, next);
    }, make);
  }
}

module.exports = { watch };
