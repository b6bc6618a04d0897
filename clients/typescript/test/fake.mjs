// A small lockkeeper: one process, one lease a key, and answers that a test may replace.

import { createServer } from 'node:http';

const problem = (status, code, more = {}) =>
    [status, { code, detail: `by the test: ${code}`, status, type: `urn:lockkeeper:${code}`, ...more }];

export async function fake({ listen = [0, '127.0.0.1'], make = createServer } = {}) {
    const service = { held: new Map(), seen: [], last: 0, instead: () => undefined, problem };
    /** About several keys: it waits for none. */
    const several = ({ method, token, body }) => {
        const keys = (body.keys ?? body.leases).map(({ key }) => key);
        const isMine = (key) => service.held.get(key)?.token === token;
        const busy = method === 'POST' && keys.find((key) => service.held.has(key) && !isMine(key));
        if (busy) return problem(409, 'lock_held', { key: busy, owner: 'other', retry_after_ms: 1500, waited_ms: 0 });
        if (method === 'POST') {
            keys.forEach((key) => isMine(key) || service.held.set(key, { token, number: ++service.last, end: Infinity }));
        }
        const lost = keys.filter((key) => !isMine(key)).map((key) => ({ key }));
        const leases = keys.filter(isMine).map((key) =>
            ({ key, fencing_token: service.held.get(key).number, ttl_ms: body.ttl_ms }));
        if (method === 'DELETE') keys.filter(isMine).forEach((key) => service.held.delete(key));
        if (lost.length) return problem(409, 'lock_lost', { lost });
        return method === 'DELETE' ? [204] : [200, { token, leases, ttl_ms: body.ttl_ms, waited_ms: 0 }];
    };
    const answer = (one) => {
        const { method, key, token, body, query } = one;
        if (body.keys ?? body.leases) return several(one);
        const lease = service.held.get(key);
        const mine = !!lease && lease.token === token && lease.end > Date.now();
        const grant = (status) => [status, {
            key, token, fencing_token: service.held.get(key).number, ttl_ms: body.ttl_ms, waited_ms: 0,
        }];
        if (method === 'GET') return [200, { key, held: !!lease, waiters: 0, ttl_ms: 5, fencing_token: lease?.number }];
        const named = Number(body.fencing_token ?? query.get('fencing_token') ?? NaN);
        if (method !== 'GET' && mine && named && named !== lease.number) {
            return problem(409, 'lock_lost', { fencing_token: lease.number });
        }
        if (method === 'DELETE') {
            if (!mine) return problem(409, 'lock_lost');
            service.held.delete(key);
            return [204];
        }
        if (method === 'PUT' && !mine) return problem(409, 'lock_lost');
        if (method === 'POST' && lease && !mine && lease.end > Date.now()) {
            return problem(409, 'lock_held', { owner: 'other', retry_after_ms: 1500, waited_ms: 0 });
        }
        const isRepeat = mine && !(method === 'POST' && named);
        service.held.set(key, { token, number: isRepeat ? lease.number : ++service.last, end: Date.now() + body.ttl_ms });
        return grant(mine ? 200 : 201);
    };
    const server = make(async (request, response) => {
        let text = '';
        for await (const part of request) text += part;
        const url = new URL(request.url, 'http://fake');
        const one = {
            method: request.method, path: request.url, token: request.headers['lock-token'], port: request.socket.remotePort, headers: request.headers,
            key: decodeURIComponent(url.pathname.replace(/^(\/admin)?\/locks\/?/, '').replace(/\/refresh$/, '')),
            query: url.searchParams, body: text ? JSON.parse(text) : {},
        };
        service.seen.push(one);
        const [status, body] = (await service.instead(one)) ?? answer(one);
        if (status === 0) return request.socket.destroy();
        response.writeHead(status, { 'content-type': 'application/json', ...(status === 409 && { 'retry-after': '1' }) });
        response.end(body && JSON.stringify(body));
    });
    await new Promise((resolve) => server.listen(...listen, resolve));
    service.url = typeof listen[0] === 'string' ? `unix:${listen[0]}` : `http://127.0.0.1:${server.address().port}`;
    service.port = server.address().port;
    service.count = (method) => service.seen.filter((one) => one.method === method).length;
    service.close = () => (server.close(), server.closeAllConnections?.());
    return service;
}
