// The dashboard in Debian's Chromium: `node dashboard.cjs CASE URL MORE...`, for tests/it/dashboard.rs.
'use strict';
const assert = require('node:assert/strict');
const fs = require('node:fs');
const net = require('node:net');
const { chromium } = require('playwright-core');

const AXE = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
// No step is judged by its time: on a busy machine each may take minutes.
const PATIENCE = 600_000;
const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-dev-shm-usage',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
const [, , name, url, ...more] = process.argv;

// The service, as other clients see it.
const ask = async (method, path, headers = {}) => {
  const answer = await fetch(url + path, { method, headers });
  return { status: answer.status, body: answer.status === 204 ? {} : await answer.json() };
};
const take = async (key, query = 'ttl=1h', headers = {}) => {
  const path = key.split('/').map(encodeURIComponent).join('/');
  const { status, body } = await ask('POST', `/locks/${path}?${query}`, headers);
  assert.equal(status, 201, JSON.stringify(body));
  return body;
};
// A client in line, for as long as the test lives.
const wait = async (key, owner) => {
  const stream = await fetch(`${url}/hold/${key}?wait=forever&owner=${owner}`, { method: 'POST' });
  assert.equal(stream.status, 200);
  return stream;
};
const release = grant => ask('DELETE', `/locks/${grant.key}`, { 'Lock-Token': grant.token });

// A wire to the service that can be cut.
const wire = async () => {
  const { hostname, port } = new URL(url), ends = new Set();
  const server = net.createServer(near => {
    const far = net.connect(port, hostname);
    for (const [from, to] of [[near, far], [far, near]]) {
      ends.add(from);
      from.pipe(to);
      from.on('error', () => to.destroy()).on('close', () => { ends.delete(from); to.destroy(); });
    }
  });
  const listen = at => new Promise(done => server.listen(at, '127.0.0.1', done));
  await listen(0);
  const here = server.address().port;
  const cut = () => { server.close(); ends.forEach(end => end.destroy()); };
  return { url: `http://127.0.0.1:${here}`, cut, mend: () => listen(here) };
};

// A tab, and what must not happen in it.
let browser;
const tab = async ({ expected = /^$/, at = url, prepare = () => {}, ...options } = {}) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.faults = [];
  page.asked = [];
  page.on('console', line => { if (line.type() === 'error' && !expected.test(line.text())) page.faults.push(line.text()); });
  page.on('pageerror', error => page.faults.push(error.stack));
  page.on('dialog', dialog => { page.faults.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', request => {
    page.asked.push(request.url());
    if (!request.url().startsWith(at + '/') && !request.url().startsWith('data:')) page.faults.push(`left: ${request.url()}`);
  });
  await prepare(page);
  await page.goto(`${at}/ui`);
  return page;
};
// Changes what the service answers to a path.
const change = (page, path, how) => page.route(path, async route => {
  const answer = await route.fetch(), body = await answer.json();
  how(body);
  await route.fulfill({ response: answer, json: body });
});
const close = async page => {
  assert.deepEqual(page.faults, []);
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await page.context().close();
};
const rows = page => page.locator('#rows tr[data-key]');
const row = (page, key) => page.locator(`#rows tr[data-key=${JSON.stringify(key)}]`);
const until = async (question, what) => {
  const began = Date.now();
  for (;;) {
    const answer = await question();
    if (answer) return answer;
    assert.ok(Date.now() - began < PATIENCE, `not in time: ${what}`);
    await new Promise(done => setTimeout(done, 50));
  }
};
const says = (page, place, text) => page.locator(place).filter({ hasText: text }).waitFor();
const judge = async (page, what) => {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
  const faults = found.violations.map(fault => `${what}: ${fault.id} ${fault.nodes.map(node => node.target.join(' ')).join(', ')}`);
  assert.deepEqual(faults, []);
};
const fits = async (page, what) => {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= window, `${what}: ${content} in ${window}`);
};

const cases = {
  // A lock that others take, lose and give back shows without a reload.
  async live() {
    const page = await tab();
    await says(page, '#blank', 'Nothing is locked');
    await says(page, '#blank', `curl -X POST '${url}/locks/hello?ttl=30s'`); // Other shells expand the `?`.
    for (const link of await page.locator('nav a').evaluateAll(all => all.map(a => a.href))) assert.equal((await fetch(link)).status, 200, link);
    await says(page, '#live', 'live');
    const grant = await take('shop/7', 'ttl=1h&owner=web-1');
    await row(page, 'shop/7').filter({ hasText: 'web-1' }).waitFor();
    assert.match(await row(page, 'shop/7').textContent(), new RegExp(`${grant.fencing_token}exclusive`));
    assert.match(await row(page, 'shop/7').textContent(), /59 m \d\d s|1 h 00 m/);
    await says(page, '#count', '1 held');
    assert.equal((await release(grant)).status, 204);
    await row(page, 'shop/7').waitFor({ state: 'detached' });
    await says(page, '#end-rows tr:first-child', 'released');
    await take('short', 'ttl=200ms&owner=web-2');
    await says(page, '#end-rows tr', 'expired');
    await says(page, '#store', 'Embedded store');
    const forced = await take('forced');
    assert.equal((await ask('DELETE', `/admin/locks/${forced.key}`)).status, 200);
    await says(page, '#end-rows tr', 'forced');
    await until(() => page.evaluate(() => document.querySelector('#charts path').getAttribute('d')), 'a picture');
    await page.locator('#charts summary').first().click();
    await page.locator('#charts tbody tr').first().waitFor();
    await close(page);
  },

  // Since when a key is held is told by the reader's clock, with the date where it is not today, and
  // counted from the beginning of the lease, however late the page is opened.
  async since() {
    const zone = 'Asia/Kathmandu', began = Date.now();
    await take('held', 'ttl=1h');
    await take('shared', 'ttl=1h&slots=2');
    const next = await wait('held', 'web-2');
    await until(async () => (await ask('GET', '/locks/held?waiters=1')).body.queue?.[0]?.waited_ms > 3000, 'three seconds');
    const minute = after => new Date(began + after * 60000).toLocaleTimeString('en-GB', { timeZone: zone, hour: '2-digit', minute: '2-digit' });
    const page = await tab({ timezoneId: zone });
    const since = row(page, 'held').locator('.since');
    await since.waitFor();
    const told = await since.textContent();
    assert.ok([0, 1, 2].map(minute).includes(told), `${told}: ${minute(0)}`);
    assert.doesNotMatch(await row(page, 'held').locator('td').nth(2).textContent(), /^[0-2] s|≥/);
    // A shared key has no one time: those of its leases are in the details.
    assert.equal(await row(page, 'shared').locator('td').nth(2).textContent(), '');
    await row(page, 'held').locator('.name').click();
    await says(page, '#facts .queue', /^(?![0-2](\.\d)? s).*web-2$/);
    await says(page, '#facts', /, since \d\d:\d\d:\d\d GMT\+5:45/);
    await page.clock.setFixedTime('2026-06-30T18:15:01Z'); // A second after midnight there.
    await since.filter({ hasText: /^30 Jun, 23:\d\d$/ }).waitFor();
    await next.body.cancel();
    await close(page);
  },

  // What cannot be made to happen at will, as the service would tell it.
  async rare() {
    await take('late', 'ttl=1h');
    let store = {};
    const page = await tab({ prepare: async page => {
      await change(page, '**/locks?*', body => { body.locks[0].ttl_ms = 0; });
      await change(page, '**/ui/status*', body => {
        Object.assign(body.store, store);
        body.uptime_ms = 60000;
        const write = { 40000: 1, 30000: 1, 25000: 2 };
        body.past &&= [45000, 40000, 35000, 30000, 25000, 20000].map(ago_ms => ({ ago_ms, grants: 1, refusals: 0, write_ms: write[ago_ms] }));
      });
    } });
    await row(page, 'late').locator('.time').filter({ hasText: 'ending' }).waitFor();
    // A point between gaps is a dot, and each point is in the table.
    const writes = page.locator('#charts .chart').nth(3);
    await until(async () => (await writes.locator('.dots').last().getAttribute('d') || '').match(/M/g)?.length === 1, 'a dot');
    await writes.locator('summary').click();
    const minutes = writes.locator('tbody tr');
    await until(async () => await minutes.count() >= 6, 'all points');
    assert.equal(await minutes.filter({ hasText: /[12](\.0)? ms$/ }).count() >= 3, true);
    // A Redis that began without data while the service ran has lost its leases.
    store = { name: 'redis', began_empty_ms: 12000, latency_ms: 1 };
    await says(page, '#store', /Redis began 1\d s ago with no leases: those from before are lost/);
    store = { ...store, began_empty_ms: 59500 };
    await says(page, '#store', /Redis, answers in 1.0 ms, began 59 s ago|Redis, answers in 1.0 ms, began 1 m/);
    store = { ...store, began_empty_ms: 3600000 };
    await says(page, '#store', /^Redis, answers in 1.0 ms$/);
    await close(page);
  },

  // The filter narrows the table, is in the URL, and survives a reload; the keyboard is enough.
  async filter() {
    for (const [key, owner] of [['cron/a', 'web-1'], ['cron/b', 'web-2'], ['shop/a', 'web-1']]) await take(key, `ttl=1h&owner=${owner}`);
    const page = await tab();
    await until(async () => await rows(page).count() === 3, 'three rows');
    await page.locator('body').press('/');
    await until(() => page.evaluate(() => document.activeElement.id === 'filter'), 'the focus');
    await page.keyboard.type('prefix:cron/ owner:WEB-2');
    await until(async () => await rows(page).count() === 1, 'one row');
    const filtered = `${url}/ui#filter=${encodeURIComponent('prefix:cron/ owner:WEB-2')}`;
    await until(() => page.url() === filtered, 'the filter in the URL');
    await page.reload();
    await until(async () => await rows(page).count() === 1, 'one row after a reload');
    const text = 'prefix:cron/ owner:WEB-2';
    await until(async () => await page.inputValue('#filter') === text, 'the filter in its field');
    await page.fill('#filter', 'held:>1d');
    await says(page, '#blank', 'No held key matches the filter');
    await page.fill('#filter', 'waiting:>0');
    await says(page, '#blank', 'No held key matches the filter');
    await page.fill('#filter', 'ownr:x');
    await says(page, '#foot', 'ownr: is no filter (those are prefix:, owner:, waiting: and held:), so ownr:x is searched as text.');
    await page.fill('#filter', 'held:>banana');
    await says(page, '#foot', 'held:>banana is no time: write held:>10m');
    await page.locator('#filter').press('Enter');
    await until(() => page.evaluate(() => document.activeElement.matches('#rows .name')), 'a row with the focus');
    await page.keyboard.press('/');
    await page.locator('#filter').press('Escape');
    assert.equal(await page.inputValue('#filter'), 'held:>banana');
    await page.fill('#filter', '');
    await until(async () => await rows(page).count() === 3, 'three rows again');
    await until(() => page.url() === `${url}/ui`, 'no filter in the URL');
    await page.locator('th[data-sort=key] button').click();
    const keys = () => rows(page).evaluateAll(all => all.map(tr => tr.dataset.key).join(' '));
    await until(async () => await keys() === 'cron/a cron/b shop/a', 'rows in the order of keys');
    assert.equal(await page.getAttribute('th[data-sort=key]', 'aria-sort'), 'ascending');
    await page.evaluate(() => document.activeElement.blur());
    for (const key of ['j', 'j', 'j', 'k', 'Enter']) await page.keyboard.press(key);
    await says(page, '#panel-key', 'cron/b');
    await says(page, '#facts', 'web-2');
    await page.keyboard.press('Escape');
    await page.locator('#panel').waitFor({ state: 'hidden' });
    const focused = () => page.evaluate(() => document.activeElement.closest('tr')?.dataset.key);
    await until(async () => await focused() === 'cron/b', 'the focus on the row');
    await page.keyboard.press('?');
    await page.locator('#help').waitFor();
    await page.keyboard.press('Escape');
    await page.locator('#help').waitFor({ state: 'hidden' });
    await close(page);
  },

  // A key is freed only by somebody who types it and says why; the next in line has it then.
  async free() {
    const key = 'deploy/shop';
    await take(key, 'ttl=1h&owner=web-1');
    const next = await wait(key, 'web-3');
    const page = await tab();
    await row(page, key).locator('.wait').filter({ hasText: '1' }).waitFor();
    await row(page, key).locator('.name').focus();
    await page.keyboard.press('f');
    await page.locator('#free-form').waitFor();
    await says(page, '#free-next', 'web-1');
    const button = page.locator('#free-do');
    assert.ok(await button.isDisabled());
    await page.fill('#free-key', key);
    assert.ok(await button.isDisabled(), 'without a reason');
    await page.fill('#free-reason', 'web-1 is powered off');
    await page.fill('#free-key', 'deploy/sho');
    assert.ok(await button.isDisabled(), 'with another key');
    await page.locator('#free-key').press('Enter');
    assert.equal((await ask('GET', `/locks/${key}`)).body.owner, 'web-1');
    await page.fill('#free-key', key);
    await page.locator('#free-reason').press('Enter');
    await says(page, '#free-said', 'Freed');
    await row(page, key).filter({ hasText: 'web-3' }).waitFor();
    assert.equal((await ask('GET', `/locks/${key}`)).body.owner, 'web-3');
    await next.body.cancel();
    await says(page, '#end-rows tr', 'forced');
    await close(page);
  },

  // A shared key shows how many share it and who they are; a person ends one of its leases, or all.
  async shared() {
    for (const owner of ['web-1', 'web-2', 'web-3']) await take('api/reports', `ttl=1h&slots=5&owner=${owner}`);
    for (const owner of ['php-1', 'php-2']) await take('catalogue', `ttl=1h&shared=true&owner=${owner}`);
    for (const units of [1, 3]) await take('gpu', `ttl=1h&slots=8&units=${units}&owner=job-${units}`);
    await take('alone', 'ttl=1h&owner=cron-1');
    const next = await wait('catalogue', 'a-writer');
    const page = await tab({ expected: /status of 409/ });
    const shared = row(page, 'api/reports');
    await shared.filter({ hasText: '3 of 5' }).waitFor();
    await row(page, 'catalogue').filter({ hasText: '2 readers' }).waitFor();
    assert.match(await shared.textContent(), /shared$/);
    const gpu = row(page, 'gpu');
    await gpu.filter({ hasText: '2 with 4 of 8' }).waitFor();
    await gpu.locator('.name').click();
    await says(page, '#facts', 'slot 1 job-1');
    await says(page, '#facts', '3 units job-3');
    assert.equal((await ask('DELETE', '/admin/locks/gpu')).body.holders, 2);
    await gpu.waitFor({ state: 'detached' });
    const keys = () => rows(page).evaluateAll(all => all.map(tr => tr.dataset.key).join(' '));
    await page.locator('th[data-sort=owner] button').click();
    await until(async () => await keys() === 'catalogue api/reports alone', 'rows in the order of owners');
    await page.fill('#filter', 'owner:readers waiting:>0');
    await until(async () => await keys() === 'catalogue', 'the readers');
    await page.fill('#filter', '');
    await shared.locator('.name').click();
    await says(page, '#facts', 'slot 2 web-2');
    const { leases } = (await ask('GET', '/locks/api/reports')).body;
    for (const lease of leases) await says(page, '#facts', String(lease.fencing_token));
    const button = page.locator('#free-do');
    const confirm = async () => {
      await page.locator('#free-open').click();
      await page.fill('#free-key', 'api/reports');
      await page.fill('#free-reason', 'it hangs');
      await says(page, '#free-next', 'Choose whose lease ends');
      assert.ok(await button.isDisabled(), 'without a choice');
    };
    await confirm();
    const second = leases.find(lease => lease.slot === 2);
    await page.selectOption('#free-which', String(second.fencing_token));
    await says(page, '#free-next', 'web-2 loses the lease');
    await judge(page, 'a lease of several');
    await button.click();
    await says(page, '#free-said', 'web-2 lost the lease');
    await shared.filter({ hasText: '2 of 5' }).waitFor();
    const left = (await ask('GET', '/locks/api/reports')).body.leases.map(lease => lease.slot);
    assert.deepEqual(left.sort(), [1, 3]);
    await confirm();
    const first = leases.find(lease => lease.slot === 1);
    await page.selectOption('#free-which', String(first.fencing_token));
    assert.equal((await ask('DELETE', `/admin/locks/api/reports?fencing_token=${first.fencing_token}`)).status, 200);
    await says(page, '#free-next', 'has ended by now');
    assert.equal(await page.inputValue('#free-which'), String(first.fencing_token), 'another lease was chosen');
    assert.ok(await button.isDisabled(), 'of a lease that has ended');
    await take('api/reports', 'ttl=1h&slots=5&owner=web-4');
    await page.selectOption('#free-which', 'all');
    await says(page, '#free-next', 'All 2 holders lose their leases');
    await button.click();
    await says(page, '#free-said', '2 holders lost their leases');
    await shared.waitFor({ state: 'detached' });
    await next.body.cancel();
    await close(page);
  },

  // With API keys: it asks for one, keeps it in the tab, and shows what is missing.
  async keys() {
    const [root, reader, locker] = more, bearer = { Authorization: `Bearer ${root}` };
    await take('shop/7', 'ttl=1h&owner=web-1', bearer);
    await take('secret/1', 'ttl=1h', bearer);
    const page = await tab({ expected: /status of 40[13]/ });
    await page.locator('#key-form').waitFor();
    assert.ok(!page.asked.some(asked => /\/locks|status|events/.test(asked)), `asked without a key: ${page.asked}`);
    const enter = async secret => { await page.fill('#key-input', secret); await page.locator('#key-input').press('Enter'); };
    assert.equal(await page.getAttribute('#key-input', 'type'), 'password');
    await enter('a-wrong-one');
    await says(page, '#key-said', 'unknown API key');
    await enter(locker);
    await says(page, '#blank', 'lacks the permission `read`');
    await page.locator('#key-open').click();
    await enter(reader);
    await row(page, 'shop/7').waitFor();
    assert.equal(await rows(page).count(), 1);
    await row(page, 'shop/7').locator('.name').click();
    await says(page, '#free-why', 'Needs the permission admin');
    assert.ok(await page.locator('#free-open').isDisabled());
    await page.keyboard.press('f');
    assert.ok(await page.locator('#free-form').isHidden());
    await page.locator('#panel-close').click();
    await page.locator('#reserve-open').click();
    assert.ok(await page.locator('#reserve-do').isDisabled());
    await page.keyboard.press('Escape');
    await page.reload();
    await row(page, 'shop/7').waitFor();
    const kept = await page.evaluate(() => [localStorage.length, document.cookie, location.href].join());
    assert.equal(kept, `0,,${url}/ui`);
    assert.ok(!page.asked.some(asked => [root, reader, locker].some(secret => asked.includes(secret))));
    await judge(page, 'with an API key');
    const other = await page.context().newPage();
    await other.goto(`${url}/ui`);
    await other.locator('#key-form').waitFor();
    await judge(other, 'asking for an API key');
    await close(page);
  },

  // Texts of clients are shown, and do nothing; long ones do not widen the page.
  async inert() {
    const owner = '\u202Egnp.exe</td><img src=x onerror=alert(1)><script>alert(2)</script>\u200B';
    const key = 'a/<img src=x onerror=alert(3)>';
    await take(key, `ttl=1h&owner=${encodeURIComponent(owner)}`);
    await take('long/' + 'x'.repeat(507), `ttl=1h&owner=${'y'.repeat(256)}`);
    // Blanks are shown, each of them, also where a key is shortened.
    const blanks = ['x'.repeat(20), ' a/two  and  ', ' 24 characters and  more '];
    for (const key of blanks) await take(key, 'ttl=1h&owner=web-1');
    const gone = await take('gone', `ttl=1h&owner=${encodeURIComponent(owner)}`);
    await release(gone);
    for (const width of [360, 1280]) {
      const page = await tab({ viewport: { width, height: 740 } });
      await until(async () => await rows(page).count() === 5, 'five rows');
      await says(page, '#end-rows', 'released');
      const wide = key => row(page, key).locator('.name .both').evaluate(both => [...both.children].reduce((sum, part) => sum + part.scrollWidth, 0));
      const character = await wide(blanks[0]) / 20;
      for (const key of blanks) assert.equal(Math.round(await wide(key) / character), key.length, key);
      assert.equal(await row(page, 'long/' + 'x'.repeat(507)).locator('.owner').getAttribute('title'), 'y'.repeat(256));
      await fits(page, 'the table');
      await row(page, key).locator('.name').click();
      await says(page, '#facts', 'onerror=alert(1)');
      await says(page, '#facts', 'U+202E');
      await fits(page, 'the details');
      assert.equal(await page.locator('main img, main script, #panel img, #panel script').count(), 0);
      assert.ok(!(await page.locator('body').innerText()).includes('\u202E'));
      await page.locator('#panel-close').click();
      await row(page, 'long/' + 'x'.repeat(507)).locator('.name').click();
      await says(page, '#facts', 'y'.repeat(256));
      await fits(page, 'a long key');
      await close(page);
    }
  },

  // A text that is shown in two parts is copied as it is, and its end is seen: an agent's purpose.
  async copied() {
    const key = `${'directory/'.repeat(20)}name-00000001`, owner = `deploy@${'build-'.repeat(20)}7:4711 agent: rebuild the search`;
    await take(key, `ttl=1h&owner=${encodeURIComponent(owner)}`);
    await release(await take(key + 'x', `ttl=1h&owner=${encodeURIComponent(owner)}`));
    for (const width of [360, 1280]) {
      const page = await tab({ viewport: { width, height: 740 } });
      await says(page, '#end-rows', 'released');
      const owners = width === 360 ? ['#rows .sub'] : ['#rows .owner', '#end-rows .owner'];
      for (const [place, whole] of [['#rows .name', key], ['#end-rows .key', key + 'x'], ...owners.map(place => [place, owner])]) {
        const both = page.locator(`${place} .both`).first();
        await until(() => both.locator('.cut').evaluate(cut => cut.scrollWidth > cut.clientWidth), 'a shortened text');
        // Twelve letters of a monospaced key are wider than its column among the ends at 360.
        const seen = await both.evaluate(both => both.lastChild.scrollWidth <= both.lastChild.clientWidth + 1 &&
          both.lastChild.getBoundingClientRect().right <= both.getBoundingClientRect().right + 1);
        assert.ok(seen || `${width} ${place}` === '360 #end-rows .key', `the end of ${place}`);
        assert.equal(await page.locator(place).first().evaluate(node => {
          getSelection().selectAllChildren(node);
          return String(getSelection());
        }), whole);
      }
      await close(page);
    }
  },

  // No findings of axe in any state, light and dark; nothing moves where that is not wanted.
  async axe() {
    const key = 'cron/report';
    await take(key, 'ttl=1h&owner=web-1');
    const next = await wait(key, 'web-3');
    await release(await take('gone', 'ttl=1h&owner=web-2'));
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [360, 1280]) {
        const page = await tab({ colorScheme, viewport: { width, height: 800 }, reducedMotion: 'reduce' });
        await row(page, key).waitFor();
        await says(page, '#end-rows tr', 'released');
        const what = `${colorScheme} ${width}`;
        await judge(page, what);
        assert.equal(await row(page, key).evaluate(tr => getComputedStyle(tr).animationName), 'none');
        await page.locator('#charts summary').first().click();
        await judge(page, `${what} table of a picture`);
        await row(page, key).locator('.name').click();
        await page.locator('#free-open').click();
        await judge(page, `${what} details`);
        await page.keyboard.press('Escape');
        await page.keyboard.press('Escape');
        for (const open of ['#reserve-open', '#help-open']) {
          await page.locator(open).click();
          await judge(page, `${what} ${open}`);
          await page.keyboard.press('Escape');
        }
        await page.fill('#filter', 'nothing-like-this');
        await says(page, '#blank', 'No held key matches');
        await judge(page, `${what} empty`);
        await close(page);
      }
    }
    await next.body.cancel();
  },

  // Ten thousand locks: a hundred rows at first, more on scrolling, and each can be found.
  async many() {
    const keys = Array.from({ length: 10000 }, (_, at) => `bulk/${String(at).padStart(5, '0')}`);
    await Promise.all(Array.from({ length: 32 }, async () => {
      for (let key; (key = keys.pop());) await take(key, `ttl=1h&owner=web-${key.slice(5)}`);
    }));
    const page = await tab();
    await until(async () => await rows(page).count() === 100, 'a hundred rows');
    await says(page, '#count', '10,000 held');
    await page.locator('#held').evaluate(held => held.scrollTo(0, held.scrollHeight));
    await until(async () => await rows(page).count() >= 200, 'two hundred rows');
    await page.fill('#filter', 'owner:web-07777');
    await row(page, 'bulk/07777').waitFor();
    assert.equal(await rows(page).count(), 1);
    await page.fill('#filter', 'prefix:bulk/0999');
    await until(async () => await rows(page).count() === 10, 'ten rows');
    await page.fill('#filter', '');
    await until(async () => await rows(page).count() === 100, 'a hundred rows again');
    await row(page, await rows(page).nth(50).getAttribute('data-key')).locator('.name').click();
    await says(page, '#facts', 'web-0');
    await close(page);
  },

  // Without the service the page says since when, and goes on with it.
  async cut() {
    const through = await wire();
    const page = await tab({ expected: /ERR_/, at: through.url });
    await says(page, '#live', 'live');
    await take('held/before', 'ttl=1h');
    await row(page, 'held/before').waitFor();
    through.cut();
    await says(page, '#live', 'offline');
    await says(page, '#store', 'cannot reach lockkeeper');
    await says(page, '#count', 'as of');
    assert.equal(await rows(page).count(), 1);
    await judge(page, 'offline');
    await through.mend();
    await says(page, '#live', 'live');
    await says(page, '#count', '1 held');
    await close(page);
    through.cut();
  },

  // The store is gone: what was known stays, with its age, and the first line says what to do.
  async store() {
    const page = await tab({ expected: /status of 503/ });
    await says(page, '#store', 'Redis, answers in');
    await take('known', 'ttl=1h&owner=web-1');
    await row(page, 'known').waitFor();
    process.kill(Number(more[0]), 'SIGKILL');
    await says(page, '#store', 'Redis does not answer');
    await says(page, '#store', 'do not restart it');
    await says(page, '#count', 'as of');
    await row(page, 'known').filter({ hasText: 'web-1' }).waitFor();
    await judge(page, 'without a store');
    await close(page);
  },

  // A person takes a key: for as long as the tab is open, or for a time; the token is shown once.
  async reserve() {
    const page = await tab({ expected: /status of 409/ });
    const reserve = async (key, fixed) => {
      await page.locator('#reserve-open').click();
      await page.fill('#reserve-key', key);
      await page.fill('#reserve-name', 'Ana');
      await page.fill('#reserve-reason', 'schema change');
      await page.locator(fixed ? '#reserve-fixed' : 'input[value=hold]').check();
      await page.locator('#reserve-do').click();
    };
    await reserve('deploy/shop', false);
    await page.locator('#token').waitFor();
    await judge(page, 'the token');
    await page.locator('#token [data-close]').click();
    await page.locator('#token-text:empty').waitFor({ state: 'attached' });
    await row(page, 'deploy/shop').filter({ hasText: 'Ana: schema change' }).waitFor();
    await reserve('deploy/shop', true);
    await says(page, '#reserve-said', 'is held by Ana: schema change');
    await page.keyboard.press('Escape');
    await says(page, '#mine', 'You hold deploy/shop');
    await page.locator('#mine button').click();
    await row(page, 'deploy/shop').waitFor({ state: 'detached' });
    await reserve('deploy/db', false);
    await page.locator('#token').waitFor();
    assert.equal((await ask('DELETE', '/admin/locks/deploy/db')).status, 200);
    await says(page, '#token-title', 'Reservation ended');
    await says(page, '#token-what', 'Your reservation of deploy/db has ended: forced.');
    assert.equal(await page.title(), 'Ended: deploy/db · lockkeeper');
    await page.locator('#token [data-close]').click();
    await page.locator('#mine button').click();
    assert.equal(await page.title(), 'lockkeeper');
    await reserve('deploy/api', true);
    await page.locator('#token').waitFor();
    const token = await page.locator('#token-text').textContent();
    await page.locator('#token [data-close]').click();
    await says(page, '#mine', /You hold deploy\/api until .*\d\d:\d\d:\d\d/);
    assert.equal((await release({ key: 'deploy/api', token })).status, 204);
    await says(page, '#mine', 'Your reservation of deploy/api has ended: released');
    await reserve('deploy/tab', false);
    await page.locator('#token').waitFor();
    await close(page);
    await until(async () => !(await ask('GET', '/locks/deploy/tab')).body.held, 'the tab is closed, the key is free');
  },

  // The pictures of the pages: an hour at a shop.
  async pictures() {
    const [directory] = more;
    for (const key of ['shop/orders/4711', 'shop/orders/4712', 'import/prices/eu']) {
      const grant = await take(key, 'ttl=1m&owner=web-2');
      await new Promise(done => setTimeout(done, 100));
      await release(grant);
    }
    await take('shop/orders/4713', 'ttl=300ms&owner=web-3');
    for (const owner of ['web-1', 'web-2', 'web-3']) await take('api/partner', `ttl=1m&slots=5&owner=${owner}`);
    await take('deploy/shop', `ttl=10m&owner=${encodeURIComponent('ci-1: release 2026.48')}`);
    await take('cron/nightly-report', `ttl=5m&owner=${encodeURIComponent('root@db-1:2211 report.php')}`);
    await take('import/prices', 'ttl=2m&owner=web-1');
    const next = await wait('deploy/shop', 'ci-2');
    const page = await tab({ viewport: { width: 1200, height: 640 } });
    await row(page, 'deploy/shop').locator('.wait').filter({ hasText: '1' }).waitFor();
    await says(page, '#end-rows tr', 'expired');
    await page.screenshot({ path: `${directory}/dashboard.png` });
    await row(page, 'deploy/shop').locator('.name').focus();
    await page.keyboard.press('f');
    await page.fill('#free-key', 'deploy/shop');
    await page.fill('#free-reason', 'ci-1 is powered off, OPS-123');
    await says(page, '#free-next', 'ci-1');
    await page.screenshot({ path: `${directory}/dashboard-free.png`, clip: { x: 700, y: 0, width: 500, height: 640 } });
    await next.body.cancel();
    await close(page);
  },
};

(async () => {
  browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS, timeout: PATIENCE });
  try { await cases[name](); } finally { await browser.close(); }
})().catch(error => { console.error(error); process.exit(1); });
