// The page of the contract in Chromium: node docs.mjs NODE_MODULES URL SCREENSHOTS
// Prints what is wrong, a line each; nothing else.

import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, url, screenshots] = process.argv.slice(2);
const require = createRequire(join(modules, 'index.js'));
const { chromium } = require('playwright-core');
const axe = await readFile(require.resolve('axe-core/axe.min.js'), 'utf8');
const { origin } = new URL(url);

// No step is judged by its time: on a busy machine each may take minutes.
const PATIENCE = 600_000;
const VIEWS = [
    { name: 'light', colorScheme: 'light', viewport: { width: 1280, height: 900 } },
    { name: 'dark', colorScheme: 'dark', viewport: { width: 1280, height: 900 } },
    { name: 'phone', colorScheme: 'light', viewport: { width: 360, height: 780 } },
];
const OPERATION = '#tag/locks/PUT/locks/{key}/refresh';
const OTHER = '#tag/locks/POST/locks/{key}';
// The clients of the examples, and what a refresh with each of them has.
const EXAMPLES = {
    'go/native': 'http.NewRequest("PUT"',
    'js/fetch': "method: 'PUT'",
    'php/curl': "CURLOPT_CUSTOMREQUEST, 'PUT'",
    'python/requests': 'requests.put(',
    'shell/curl': '--request PUT',
};
// Faults of Scalar 1.70.0: buttons that copy have no name, and code that scrolls is not reached by Tab.
const SCALARS = ['button-name', 'scrollable-region-focusable'];

const found = [];
const expect = (holds, what) => { if (!holds) found.push(what); };

const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
    timeout: PATIENCE,
});
try {
    for (const view of VIEWS) await look(view);
    await use();
} catch (error) {
    found.push(error.message);
} finally {
    await browser.close();
}
console.log(found.join('\n'));

/** Opens the page at an operation; faults and requests to other hosts are findings. */
async function open(options) {
    const context = await browser.newContext({ ...options, bypassCSP: false });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    page.on('console', (message) => {
        expect(message.type() === 'info', `console: ${message.text()}`);
    });
    page.on('pageerror', (error) => found.push(`error: ${error.message}`));
    page.on('request', (request) => {
        const own = request.url().startsWith(`${origin}/`);
        expect(own || request.url().startsWith('data:'), `request: ${request.url()}`);
    });
    await page.goto(url + OPERATION);
    const operation = section(page, OPERATION);
    await operation.getByTestId('client-picker').waitFor();
    return { context, page, operation };
}

/** The part of the page about one operation. */
function section(page, operation) {
    return page.locator(`section[id$="${operation.slice(1)}"]`);
}

async function look({ name, ...options }) {
    const { context, page } = await open(options);
    await page.screenshot({ path: join(screenshots, `docs-${name}-operation.png`) });
    // Its own script runs beside the page, so that the page's policy stays in force.
    const session = await context.newCDPSession(page);
    await session.send('Runtime.evaluate', { expression: axe });
    const { result } = await session.send('Runtime.evaluate', {
        expression: 'axe.run().then(({ violations }) => JSON.stringify(violations.map(({ id, impact, nodes }) => '
            + '({ id, impact, html: nodes.map((node) => node.html.slice(0, 150)).join(" | ") }))))',
        awaitPromise: true,
    });
    for (const { id, impact, html } of JSON.parse(result.value)) {
        expect(SCALARS.includes(id) || !['serious', 'critical'].includes(impact), `${name}: ${id}: ${html}`);
    }
    if (options.viewport.width >= 1280) await uncut(page, name, '.response-card .tab-list');
    await page.goto(url);
    await page.getByText(origin, { exact: true }).first().waitFor();
    const sample = page.locator('pre', { hasText: 'T=$(uuidgen)' }).first();
    await sample.waitFor();
    expect((await sample.innerText()).includes(`'${new URL(origin).host}/locks/report?ttl=30s'`), `${name}: a sample of another service`);
    if (options.viewport.width >= 1280) await uncut(page, name, 'pre');
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(wide <= 0, `${name}: ${wide} pixels too wide`);
    await page.screenshot({ path: join(screenshots, `docs-${name}.png`) });
    await context.close();
}

/** Looks for samples, tabs and descriptions that do not fit; one of them has to be there. */
async function uncut(page, name, one) {
    expect(await page.locator(one).count() > 0, `${name}: no ${one}`);
    const boxes = page.locator('pre, pre code, .tab-list, .overflow-x-auto, .response-card-footer');
    const cut = await boxes.evaluateAll((all) => all
        .filter((box) => box.scrollWidth > box.clientWidth + 1
            || box.matches('.response-card-footer') && box.scrollHeight > box.clientHeight + 1)
        .map((box) => `${box.className} ${box.scrollWidth} in ${box.clientWidth}: ${box.textContent.slice(0, 60)}`));
    expect(cut.length === 0, `${name}: cut: ${cut.join(' | ')}`);
}

async function use() {
    const { context, page, operation } = await open({ viewport: { width: 1280, height: 900 } });
    const picker = operation.getByTestId('client-picker');
    const options = page.getByRole('option');
    await picker.click();
    await options.first().waitFor();
    const clients = await options.evaluateAll((all) => all.map(({ id }) => id.match(/\w+\/\w+$/)[0]));
    expect(clients.sort().join() === Object.keys(EXAMPLES).join(), `clients: ${clients}`);
    await page.keyboard.press('Escape');
    for (const [client, text] of Object.entries(EXAMPLES)) {
        await picker.click();
        await page.locator(`[role=option][id$="${client}"]`).click();
        const example = operation.locator('pre', { hasText: text }).first();
        await example.waitFor();
        expect((await example.innerText()).includes(`${origin}/locks/report/refresh`), `${client}: not this service`);
    }
    await page.keyboard.press('Control+k');
    await page.keyboard.type('waiting in line');
    await page.screenshot({ path: join(screenshots, 'docs-search.png') });
    await page.getByRole('dialog').getByText('Acquire a key').click();
    await page.locator(`a[aria-current=page][href="${OTHER}"]`).waitFor();
    // A request from the page.
    await section(page, OTHER).getByRole('button', { name: 'Test Request' }).click();
    await page.getByRole('button', { name: 'Send post request' }).click();
    await page.getByText('201 Created').waitFor();
    await page.screenshot({ path: join(screenshots, 'docs-request.png') });
    await context.close();
}
