// The libraries with which Node applications lock on Redis directly, all for keys `lock:<key>`.
'use strict';

const Redis = require('ioredis');
const Redlock4 = require('redlock4');
const { default: Redlock5, Lock: Lock5 } = require('redlock5');

// How long the libraries sleep between two tries, and after how many of them they give up.
const PAUSE_MS = 2;
const TRIES = 60_000;

const ONCE = { retryCount: 0 };
const PATIENT = { retryCount: TRIES, retryDelay: PAUSE_MS, retryJitter: PAUSE_MS };

/**
 * The recipe of this name, for the Redis at this port.
 *
 * `acquire` tries once, `wait` until it is its turn, as the library does it; both give a proof of the
 * lock, or null. `release` says whether the lock was still there; `close` lets the process end.
 */
function recipe(name, port) {
    const redis = new Redis(port, '127.0.0.1');
    const Recipe = { 'node-redlock-4': NodeRedlock4, 'node-redlock-5': NodeRedlock5 }[name];
    return new Recipe(redis);
}

class NodeRedlock {
    close() {
        this.redis.disconnect();
    }

    acquire(key, ttl) {
        return this.take(this.once, key, ttl);
    }

    wait(key, ttl) {
        return this.take(this.patient, key, ttl);
    }
}

/** redlock 4, with one node. */
class NodeRedlock4 extends NodeRedlock {
    constructor(redis) {
        super();
        Object.assign(this, { redis, once: new Redlock4([redis], ONCE), patient: new Redlock4([redis], PATIENT) });
    }

    async take(redlock, key, ttl) {
        return unless('LockError', null, async () => (await redlock.lock(`lock:${key}`, ttl)).value);
    }

    async release(key, proof) {
        const lock = new Redlock4.Lock(this.once, `lock:${key}`, proof, Infinity, 0, 0);
        return unless('LockError', false, async () => (await lock.unlock(), true));
    }
}

/** redlock 5, with one node. */
class NodeRedlock5 extends NodeRedlock {
    constructor(redis) {
        super();
        Object.assign(this, { redis, once: new Redlock5([redis], ONCE), patient: new Redlock5([redis], PATIENT) });
        for (const redlock of [this.once, this.patient]) redlock.on('error', () => {}); // each vote that it did not get
    }

    async take(redlock, key, ttl) {
        return unless('ExecutionError', null, async () => (await redlock.acquire([`lock:${key}`], ttl)).value);
    }

    async release(key, proof) {
        const lock = new Lock5(this.once, [`lock:${key}`], proof, [], Infinity);
        return unless('ExecutionError', false, async () => (await lock.release(), true));
    }
}

/** What a call gives, or `otherwise` if it ends in this error. */
async function unless(error, otherwise, call) {
    try {
        return await call();
    } catch (thrown) {
        if (thrown.name !== error) throw thrown;
        return otherwise;
    }
}

module.exports = { recipe };
