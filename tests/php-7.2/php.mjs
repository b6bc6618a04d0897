// PHP 7.2 as a command line: node php.mjs [OPTION_OF_PHP]... FILE [ARGUMENT]...
// It is PHP compiled to WebAssembly, with the files and the sockets of this machine.

import { webcrypto } from 'node:crypto';
import { EventEmitter } from 'node:events';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';

globalThis.crypto ??= webcrypto; // Node 18
const require = createRequire(process.execPath); // This Node is one of the packages.
const { getPHPLoaderModule } = require('@php-wasm/node-7-2');
const { PHP, loadPHPRuntime } = require('@php-wasm/universal');

/** What PHP takes for a WebSocket: a TCP connection to an address that begins with `tcp://`. */
class Socket extends EventEmitter {
    CONNECTING = 0;
    OPEN = 1;
    CLOSING = 2;
    CLOSED = 3;
    readyState = this.CONNECTING;

    constructor(address) {
        super();
        const { hostname, port } = new URL(address);
        this.wire = connect(Number(port), hostname);
        this.wire.on('connect', () => this.becomes(this.OPEN, 'open'));
        this.wire.on('data', (bytes) => this.emit('message', bytes, true));
        this.wire.on('error', (error) => this.emit('error', error));
        this.wire.on('end', () => this.becomes(this.CLOSED, 'close'));
        this.wire.on('close', () => this.becomes(this.CLOSED, 'close'));
    }

    becomes(state, event) {
        this.readyState = state;
        this.emit(event);
    }

    send(bytes) {
        this.wire.write(new Uint8Array(bytes));
    }

    close() {
        this.readyState = this.CLOSED;
        this.wire.end();
    }

    setSocketOpt() {}
}

/** Mounts a directory of this machine. */
const files = (root) => (php, FS, place) => {
    FS.mkdirTree(place);
    FS.mount(FS.filesystems.NODEFS, { root }, place);
    return () => FS.unmount(place);
};

async function shows(stream, output) {
    for await (const bytes of stream) {
        await new Promise((written) => output.write(Buffer.from(bytes), written));
    }
}

const websocket = { url: (_, host, port) => `tcp://${host}:${port}`, decorator: () => Socket };
const php = new PHP(await loadPHPRuntime(await getPHPLoaderModule(), { websocket }));
for (const place of [tmpdir(), fileURLToPath(new URL('../..', import.meta.url))]) {
    await php.mount(place, files(place));
}
php.chdir(process.cwd());
const done = await php.cli(['php', ...process.argv.slice(2)], { env: process.env });
await Promise.all([shows(done.stdout, process.stdout), shows(done.stderr, process.stderr)]);
process.exit(await done.exitCode);
