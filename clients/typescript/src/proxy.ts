// Proxies: that of the options, or that of the environment as in other programs.

import type { Socket } from 'node:net';

/** The URL as it may be shown, where it is, and what is sent to it. */
export type Proxy = { shown: string; hostname: string; port: number; authorization?: string };

const isHere = (host: string) => host === 'localhost' || host.startsWith('127.') || host === '::1';

/** The proxy for a service; none for this machine, unless it is that of the options. */
export function proxyOf(own: string | undefined, protocol: string, host: string, port: number): Proxy | undefined {
    const url = own ?? (isHere(host) ? '' : ofEnvironment(protocol, host, port));
    if (!url) return undefined;
    const shown = url.includes('@') ? `...@${url.slice(url.lastIndexOf('@') + 1)}` : url;
    const wrong = new TypeError(`\`${shown}\` is not the URL of a proxy: write it like http://proxy:3128`);
    let parts: URL;
    try {
        parts = new URL(url.includes('://') ? url : `http://${url}`);
    } catch {
        throw wrong;
    }
    if (parts.protocol !== 'http:' || !parts.hostname) throw wrong;
    const user = [parts.username, parts.password].map(decodeURIComponent).join(':');
    const authorization = user === ':' ? undefined : `Basic ${Buffer.from(user).toString('base64')}`;
    return { shown, hostname: parts.hostname.replace(/^\[|\]$/g, ''), port: Number(parts.port || 80), authorization };
}

function ofEnvironment(protocol: string, host: string, port: number): string {
    const env = (name: string) => process.env[name.toLowerCase()] ?? process.env[name] ?? '';
    const isExempt = env('NO_PROXY').split(',').map((one) => one.trim().toLowerCase()).some((one) => {
        const [, name, only] = /^\*?\.?(.*?)(?::(\d+))?$/.exec(one)!;
        return one === '*' || (!!name && (host === name || host.endsWith(`.${name}`)) && (!only || Number(only) === port));
    });
    if (isExempt) return '';
    // A CGI program has a header of its caller in HTTP_PROXY.
    const plain = process.env['http_proxy'] ?? (process.env['REQUEST_METHOD'] ? '' : process.env['HTTP_PROXY'] ?? '');
    return (protocol === 'https:' ? env('HTTPS_PROXY') : plain) || env('ALL_PROXY');
}

/** Has the proxy connect to the service. The error has the code ERR_PROXY if it will not do so when it is asked again. */
export function tunnel(socket: Socket, { shown, authorization }: Proxy, host: string, port: number): Promise<void> {
    const name = `${host.includes(':') ? `[${host}]` : host}:${port}`;
    const head = [`CONNECT ${name} HTTP/1.1`, `Host: ${name}`, ...(authorization ? [`Proxy-Authorization: ${authorization}`] : [])];
    socket.write(`${head.join('\r\n')}\r\n\r\n`);
    return new Promise((resolve, reject) => {
        let answer = '';
        const fail = (error: Error) => (socket.destroy(), reject(error));
        socket.once('close', () => fail(new Error(`the proxy ${shown} has closed the connection`)));
        socket.on('data', function read(part) {
            answer += part.toString('latin1');
            if (!answer.includes('\r\n\r\n') && answer.length < 65_536) return;
            socket.off('data', read);
            socket.pause();
            const [, status = '', reason = ''] = /^HTTP\/1\.\d (\d{3}) ?([^\r]*)/.exec(answer) ?? [];
            if (status.startsWith('2')) return resolve();
            const error = new Error(`the proxy ${shown} makes no connection to ${name}: it answers ${status} ${reason}`);
            const isFinal = status.startsWith('4') && !['408', '425', '429'].includes(status);
            fail(isFinal ? Object.assign(error, { code: 'ERR_PROXY' }) : error);
        });
    });
}
