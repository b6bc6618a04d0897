// Connections: to the address of a name that accepts first, kept between requests.

import { lookup } from 'node:dns/promises';
import * as http from 'node:http';
import * as https from 'node:https';
import { type Socket, connect, isIP } from 'node:net';
import { connect as secure } from 'node:tls';
import { type Proxy, tunnel } from './proxy.js';

/** How to reach the service: a host and a port, or a socket file; certificates are PEM texts. */
export type Connection = {
    protocol: string; hostname?: string; port?: number; socketPath?: string; ca?: string; cert?: string; key?: string; proxy?: Proxy;
};

const NEXT_ADDRESS = 250; // The milliseconds until the next address is tried as well (RFC 8305).
const EACH_ADDRESS = 2000; // The milliseconds that an address has at least, and all of them:
const CONNECT_TIME = 5000;
const IDLE_TIME = 20_000; // Less than the service allows.
const MOST_IDLE = 32; // Connections.

type Dial = (address: string) => Socket;

/** Tries the addresses one after another, slow ones side by side: one that does not answer must not use up the time. */
export function firstToAccept(addresses: readonly string[], dial: Dial): Promise<{ socket: Socket; address: string }> {
    return new Promise((resolve, reject) => {
        const open = new Set<Socket>();
        let failure: Error = new Error('the name has no address');
        let timer: NodeJS.Timeout | undefined;
        const end = () => {
            clearTimeout(timer);
            clearTimeout(late);
            for (const other of open) other.destroy();
        };
        const fail = () => (end(), reject(failure));
        const longest = Math.max(CONNECT_TIME, NEXT_ADDRESS * (addresses.length - 1) + EACH_ADDRESS);
        const late = setTimeout(() => ((failure = new Error('no address accepts a connection')), fail()), longest);
        const left = [...addresses];
        const tryNext = () => {
            clearTimeout(timer);
            const address = left.shift();
            if (address === undefined) return void (open.size === 0 && fail());
            const socket = dial(address);
            open.add(socket);
            socket.on('error', (error) => {
                failure = error;
                if (open.delete(socket)) tryNext();
            });
            socket.once('connect', () => {
                open.delete(socket);
                end();
                resolve({ socket, address });
            });
            timer = setTimeout(tryNext, NEXT_ADDRESS);
        };
        tryNext();
    });
}

const good = new Map<string, string>(); // The address of a name that accepted last: it is tried first.

async function open({ hostname = '', port, socketPath }: Connection, usual: number): Promise<Socket> {
    if (socketPath !== undefined) return (await firstToAccept([socketPath], (path) => connect({ path }))).socket;
    const found = isIP(hostname) ? [hostname] : (await lookup(hostname, { all: true })).map(({ address }) => address);
    const known = good.get(hostname);
    const addresses = known !== undefined && found.includes(known) ? [known, ...found.filter((one) => one !== known)] : found;
    const dial = (host: string) => connect({ host, port: port ?? usual, noDelay: true });
    const { socket, address } = await firstToAccept(addresses, dial);
    good.set(hostname, address);
    return socket;
}

async function openSecure(connection: Connection): Promise<Socket> {
    const { hostname: host = '', port = 443, proxy, ca, cert, key } = connection;
    const socket = await open(proxy ? { ...connection, ...proxy } : connection, 443);
    if (proxy) await tunnel(socket, proxy, host, port);
    return new Promise((resolve, reject) => {
        const made = secure({ socket, host, servername: isIP(host) ? '' : host, ca, cert, key, ALPNProtocols: ['http/1.1'] });
        const late = setTimeout(() => made.destroy(new Error('no answer to TLS within 5 s')), CONNECT_TIME);
        made.on('error', (error) => (clearTimeout(late), reject(error)));
        made.once('secureConnect', () => (clearTimeout(late), resolve(made)));
    });
}

type Made = (error: Error | null, socket: Socket) => void;

/** Keeps connections for a while. An idle one does not keep the process alive. */
const keeping = <T extends new (...options: any[]) => http.Agent>(Base: T, make: (connection: Connection) => Promise<Socket>) =>
    class extends Base {
        declare connection: Connection;
        override createConnection(_: unknown, made?: Made): undefined {
            make(this.connection).then((socket) => made!(null, socket), (error) => made!(error, undefined!));
        }
        override keepSocketAlive(socket: Socket): boolean {
            // Returns false if the service keeps it no longer. @types/node says that it returns nothing.
            const isKept = super.keepSocketAlive(socket) as unknown as boolean;
            if (isKept) socket.setTimeout(Math.min(IDLE_TIME, socket.timeout || Infinity)); // Then an idle one is closed.
            return isKept;
        }
        override reuseSocket(socket: Socket, request: http.ClientRequest): void {
            super.reuseSocket(socket, request);
            socket.setTimeout(0);
        }
    };

const Plain = keeping(http.Agent, (connection) => open({ ...connection, ...connection.proxy }, 80));
const Secure = keeping(https.Agent, openSecure);

const agents = new Map<string, http.Agent>();

/** The agent for these settings, one for each thread. */
export function agentOf(connection: Connection): http.Agent {
    const name = JSON.stringify(connection);
    let agent = agents.get(name);
    if (!agent) {
        const Agent = connection.protocol === 'https:' ? Secure : Plain;
        // Bun 1.4 loses the second answer on a connection.
        const options = { keepAlive: !process.versions['bun'], maxFreeSockets: MOST_IDLE };
        agent = Object.assign(new Agent(options), { connection });
        agents.set(name, agent);
    }
    return agent;
}

/** Closes the idle connections, which may be as dead as one that has failed. */
export function closeIdle(agent: http.Agent): void {
    for (const sockets of Object.values(agent.freeSockets)) for (const socket of sockets ?? []) socket.destroy();
}
