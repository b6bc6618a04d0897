<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\ServiceUnavailable;

/** One of several keys. */
final class AnyKeyTest extends TestCase
{
    public function testTheKeyThatIsFreeIsAcquired(): void
    {
        $keys = self::keys(3);
        $held = [$this->client()->acquire($keys[0]), $this->client()->acquire($keys[2])];
        $lease = $this->client()->acquireAny($keys, 20);
        self::assertSame($keys[1], $lease->key());
        self::assertLasts(20.0, $lease->remaining());
        self::assertSame($this->client()->inspect($keys[1])->fencingToken, $lease->fencingToken());
        $lease->refresh(40);
        self::assertTrue($lease->release());
        self::assertSame([true, true], array_map(fn ($lease) => $lease->release(), $held));
        self::assertSame([false, false, false], $this->areHeld($keys));
        self::assertLasts(30.0, $this->client()->acquireAny($keys)->ttl());
    }

    public function testTheOrderIsRandom(): void
    {
        $keys = self::keys(2);
        $found = [];
        for ($i = 0; $i < 50; $i++) {
            $found[$this->client()->acquireAny($keys)->key()] = true;
        }
        self::assertEqualsCanonicalizing($keys, array_keys($found));
    }

    public function testWhereAllAreHeldTheFirstToEndIsTold(): void
    {
        $keys = self::keys(3);
        foreach ($keys as $key) {
            $this->client()->acquire($key, $key === $keys[1] ? 20 : 60)->handOver();
        }
        $proxy = self::faults();
        $busy = $this->thrown(LockBusy::class, fn () => $this->client($proxy->url)->acquireAny($keys));
        self::assertSame($keys[1], $busy->key);
        self::assertLasts(20.0, $busy->retryAfter);
        $requests = $proxy->requests();
        self::assertCount(3, preg_grep('/POST .*"wait_ms":0,/', $requests));
        self::assertCount(3, $requests);
    }

    public function testEachIsWaitedForWithAShareOfTheTimeAndNoPlaceIsKept(): void
    {
        $keys = self::keys(2);
        $holders = array_map(fn ($key) => $this->client()->acquire($key), $keys);
        $proxy = self::faults();
        $began = microtime(true);
        $this->thrown(LockBusy::class, fn () => $this->client($proxy->url)->acquireAny($keys, wait: 1.2));
        self::assertTook(1.2, $began);
        // Key and verb of what was asked: twice each without a wait, and in its line once or more.
        $asked = array_map(function (string $line) use ($keys): string {
            $verb = str_contains($line, '"wait_ms":0,') ? 'try' : (str_contains($line, 'POST') ? 'wait' : 'leave');
            return (str_contains($line, "/$keys[0] ") ? 'A' : 'B') . " $verb";
        }, array_values($proxy->requests()));
        $asked = preg_replace('/(\w wait,)(\1)+/', '$1', implode(',', $asked));
        $expected = 'A try,B try,A wait,A leave,B wait,B leave,A try,B try';
        self::assertContains($asked, [$expected, strtr($expected, 'AB', 'BA')]);
        foreach ($holders as $holder) {
            self::assertTrue($holder->release());
            self::assertTrue($this->client()->acquire($holder->key())->release());
        }
    }

    public function testAKeyThatBecomesFreeIsAcquired(): void
    {
        $keys = self::keys(2);
        $this->client()->acquire($keys[0], 60)->handOver();
        $began = microtime(true);
        $this->client()->acquire($keys[1], 1.2)->handOver();
        // In its line, or behind that of the other one.
        $lease = $this->client()->acquireAny($keys, 20, 4);
        self::assertSame($keys[1], $lease->key());
        self::assertGreaterThan(1.1, microtime(true) - $began);
        self::assertLasts(20.0, $lease->remaining());
    }

    public function testAnAnswerThatIsLostLeavesNothingHeld(): void
    {
        $keys = self::keys(2);
        foreach ([['lose', 'lose', 'pass'], ['held', 'lose', 'lose', 'pass']] as $faults) {
            $proxy = self::faults(...$faults);
            $client = $this->client($proxy->url, patience: 0.0);
            $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquireAny($keys));
            self::assertSame(Outcome::Unknown, $failure->outcome);
            self::assertSame([false, false], $this->areHeld($keys));
        }
        $proxy = self::faults('lose', 'pass');
        $lease = $this->client($proxy->url)->acquireAny($keys);
        self::assertTrue($lease->release());
        self::assertSame([false, false], $this->areHeld($keys));
    }

    public function testOneTokenIsForAllKeysOfACall(): void
    {
        $keys = self::keys(2);
        $holders = array_map(fn ($key) => $this->client()->acquire($key), $keys);
        $proxy = self::faults();
        $client = $this->client($proxy->url);
        $this->thrown(LockBusy::class, fn () => $client->acquireAny($keys));
        $this->thrown(LockBusy::class, fn () => $client->acquireAny($keys));
        $tokens = array_map(fn ($line) => explode(' ', $line)[4], array_values($proxy->requests()));
        self::assertSame([$tokens[0], $tokens[2]], [$tokens[1], $tokens[3]]);
        self::assertNotSame($tokens[0], $tokens[2]);
        self::assertTrue($holders[0]->release());
    }

    public function testProcessesAreNeverMoreThanTheKeys(): void
    {
        $directory = sys_get_temp_dir() . '/' . bin2hex(random_bytes(8));
        mkdir($directory);
        // Each key is a file that its holder alone may have.
        $code = '$directory = array_pop($arguments);
            for ($i = 0; $i < 15; $i++) {
                $lease = $client->acquireAny($arguments, 10, 60);
                $file = "$directory/" . basename($lease->key());
                fopen($file, "x") ?: throw new Exception("the key is taken");
                usleep(2000);
                unlink($file);
                $lease->release();
            }
            echo "done";';
        $prefix = self::key('');
        $keys = ["{$prefix}1", "{$prefix}2"];
        $workers = array_map(fn () => self::start($code, ...[...$keys, $directory]), range(1, 4));
        $codes = array_map(fn ($worker) => [stream_get_contents($worker[1]), proc_close($worker[0])], $workers);
        self::assertSame(array_fill(0, 4, ['done', 0]), $codes);
        rmdir($directory);
    }

    public function testABadSetOfKeysIsRefusedBeforeAnyRequest(): void
    {
        $client = $this->client('http://127.0.0.1:1');
        foreach ([[], ['a', 'b', 'a'], ['1', 1]] as $keys) {
            $this->thrown(\InvalidArgumentException::class, fn () => $client->acquireAny($keys));
        }
        $this->thrown(\InvalidArgumentException::class, fn () => $client->acquireAny(['a', 'b'], wait: INF));
    }

    /** @return list<string> */
    private static function keys(int $count): array
    {
        return array_map(fn () => self::key(), range(1, $count));
    }

    /** @return list<bool> */
    private function areHeld(array $keys): array
    {
        return array_map(fn (string $key): bool => $this->client()->inspect($key)->isHeld, $keys);
    }
}
