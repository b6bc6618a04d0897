<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\ServiceUnavailable;

/** Several keys at once. */
final class LeaseSetTest extends TestCase
{
    public function testAllAreHeldUntilTheyAreReleased(): void
    {
        $keys = [$b, $a, $number] = [self::key('b'), self::key('a'), self::key('7')];
        $leases = $this->client()->acquireAll($keys, 20);
        sort($keys, SORT_STRING);
        self::assertSame($keys, $leases->keys());
        self::assertLasts(20.0, $leases->remaining());
        foreach ($keys as $key) {
            self::assertSame($this->client()->inspect($key)->fencingToken, $leases->fencingToken($key));
            self::assertSame($key, $leases->lease($key)->key());
        }
        $leases->refresh(40);
        self::assertLasts(40.0, $leases->remaining());
        self::assertSame([true, false], [$leases->release(), $leases->release()]);
        self::assertSame(0.0, $leases->remaining());
        self::assertSame([false, false, false], $this->areHeld($keys));
        $this->thrown(\InvalidArgumentException::class, fn () => $leases->lease('another'));
    }

    public function testWhereOneIsBusyNoneIsHeld(): void
    {
        $keys = ['php/' . bin2hex(random_bytes(6)) . '/1', self::key(), self::key()];
        sort($keys, SORT_STRING);
        $holder = $this->client()->acquire($keys[1]);
        $busy = $this->thrown(LockBusy::class, fn () => $this->client()->acquireAll($keys));
        self::assertSame($keys[1], $busy->key);
        $began = microtime(true);
        $this->thrown(LockBusy::class, fn () => $this->client()->acquireAll($keys, wait: 0.6));
        self::assertTook(0.6, $began);
        self::assertSame([false, true, false], $this->areHeld($keys));
        self::assertTrue($holder->release());
    }

    public function testAllAreWaitedForAndTheFirstLastsMeanwhile(): void
    {
        $keys = [self::key(), self::key()];
        sort($keys, SORT_STRING);
        $began = microtime(true);
        $this->client()->acquire($keys[1], 3)->handOver();
        $leases = $this->client()->acquireAll($keys, 2, 30);
        self::assertTook(3.0, $began);
        self::assertSame([true, true], $this->areHeld($keys));
        foreach ($keys as $key) {
            self::assertLasts(2.0, $leases->lease($key)->ttl());
            self::assertSame($this->client()->inspect($key)->fencingToken, $leases->fencingToken($key));
            $this->assertNoMoreRemains($key, fn () => $leases->lease($key)->remaining());
        }
    }

    public function testClientsThatWantTheSameKeysInOtherOrdersGetThem(): void
    {
        $keys = [self::key(), self::key(), self::key()];
        $code = '[$keys, $done] = [array_slice($arguments, 0, 3), 0];
            for ($i = 0; $i < 10; $i++) {
                shuffle($keys);
                $leases = $client->acquireAll($keys, 5, 60);
                usleep(random_int(0, 5000));
                $done += (int) $leases->release();
            }
            echo $done;';
        $all = array_map(fn () => self::start($code, ...$keys), range(1, 4));
        foreach ($all as [$process, $output]) {
            self::assertSame('10', stream_get_contents($output));
            self::assertSame(0, proc_close($process));
        }
        self::assertSame([false, false, false], $this->areHeld($keys));
    }

    public function testALossOfOneIsToldAndTheOthersAreReleased(): void
    {
        $keys = [self::key(), self::key(), self::key()];
        $leases = $this->client()->acquireAll($keys);
        $this->client()->forceRelease($keys[1]);
        $lost = $this->thrown(LockLost::class, fn () => $leases->refresh());
        self::assertSame($keys[1], $lost->key);
        self::assertSame(0.0, $leases->remaining());
        self::assertFalse($leases->release());
        self::assertSame([false, false, false], $this->areHeld($keys));
    }

    public function testAReleaseThatFailsForOneIsThrownBehindTheOthers(): void
    {
        $keys = [self::key(), self::key()];
        sort($keys, SORT_STRING);
        $proxy = self::faults('pass', 'pass', ...array_fill(0, 2, 'html'), ...['pass']);
        $leases = $this->client($proxy->url, patience: 0.0)->acquireAll($keys);
        $this->thrown(ServiceUnavailable::class, fn () => $leases->release());
        self::assertSame([false, true], $this->areHeld($keys));
    }

    public function testWhatIsReplacedWithoutAnAnswerIsGivenBack(): void
    {
        $keys = [self::key(), self::key()];
        $proxy = self::faults('pass', 'pass', 'lose', 'lose'); // the first is to last for its TTL from now on
        $client = $this->client($proxy->url, patience: 0.0);
        $this->thrown(ServiceUnavailable::class, fn () => $client->acquireAll($keys, 2, 30));
        self::assertSame([false, false], $this->areHeld($keys));
        self::assertCount(2, preg_grep('/^lose POST .*"fencing_token":/', $proxy->requests()));
    }

    public function testTheyEndWithTheObjectAndWithTheProcess(): void
    {
        $keys = [self::key(), self::key()];
        $leases = $this->client()->acquireAll($keys);
        unset($leases);
        self::assertSame([false, false], $this->areHeld($keys));
        $code = '$leases = $client->acquireAll($arguments, 3600); echo "held"; exit(3);';
        self::assertSame([3, 'held'], self::script($code, ...$keys));
        self::assertSame([false, false], $this->areHeld($keys));
    }

    public function testABadSetOfKeysIsRefusedBeforeAnyRequest(): void
    {
        $client = $this->client('http://127.0.0.1:1');
        foreach ([[], ['a', 'b', 'a'], ['1', 1]] as $keys) {
            $this->thrown(\InvalidArgumentException::class, fn () => $client->acquireAll($keys));
        }
        $this->thrown(\InvalidArgumentException::class, fn () => $client->acquireAll(['a', 'b'], wait: INF));
    }

    /** @return list<bool> */
    private function areHeld(array $keys): array
    {
        return array_map(fn (string $key): bool => $this->client()->inspect($key)->isHeld, $keys);
    }
}
