<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\LockClient;
use Lockkeeper\Wait;
use PHPUnit\Framework\Attributes\DataProvider;

/** What `onWait` hears of a wait in line. */
final class WaitTest extends TestCase
{
    private function patient(?string $owner = null): LockClient
    {
        return $this->client(self::env('PATIENT_URL'), owner: $owner);
    }

    /** @dataProvider ways */
    #[DataProvider('ways')]
    public function testAWaitIsToldWhenItHasBegunAndTheWorkFollows(string $way): void
    {
        $key = self::key();
        $other = $this->patient('the other')->acquire($key, 60);
        $told = [];
        $onWait = function (Wait $wait) use (&$told, $other): void {
            $told[] = $wait;
            $other->release();
        };
        $work = fn ($lease): int => $lease->fencingToken();
        self::assertGreaterThan($other->fencingToken(), match ($way) {
            'withLock' => $this->patient('me')->withLock($key, $work, wait: 60, onWait: $onWait),
            'withHold' => $this->patient('me')->withHold($key, $work, wait: 60, onWait: $onWait),
            'tryAcquire' => $work($this->patient('me')->tryAcquire($key, wait: 60, onWait: $onWait)),
            'tryHold' => $work($this->patient('me')->tryHold($key, wait: 60, onWait: $onWait)),
        });
        self::assertCount(1, $told);
        self::assertSame([$key, 'the other', 0], [$told[0]->key, $told[0]->owner, $told[0]->ahead]);
        self::assertGreaterThanOrEqual(1.0, $told[0]->waited);
        self::assertSame(['owner' => 'me'], array_intersect_key($told[0]->raw['queue'][0], ['owner' => '']));
    }

    public static function ways(): array
    {
        $ways = ['withLock', 'withHold', 'tryAcquire', 'tryHold'];
        return array_map(fn ($way) => [$way], array_combine($ways, $ways));
    }

    public function testAWaitIsToldOnceAMinuteOverAllOfItsRequests(): void
    {
        // A clock on which a second is over after 10 ms, and a service that lets nobody wait for longer than 400 ms.
        $code = 'eval("namespace Lockkeeper\\Internal;
            function hrtime(bool \$asNumber): int { return 100 * \hrtime(true); }");
            $tells = function ($wait) { echo round($wait->waited), " "; };
            $client->tryAcquire($arguments[0], wait: 400.0, onWait: $tells);';
        $key = self::key();
        $lease = $this->client()->acquire($key, 60);
        [$code, $printed] = self::script($code, $key);
        self::assertSame(0, $code);
        $told = array_map('intval', explode(' ', trim($printed)));
        // A busy machine may look late.
        self::assertGreaterThanOrEqual(2, count($told));
        foreach (array_slice($told, 1) as $number => $seconds) {
            self::assertGreaterThanOrEqual(59, $seconds - $told[$number]);
        }
        self::assertTrue($lease->release());
    }

    public function testWhatItThrowsGivesTheClaimUp(): void
    {
        $key = self::key();
        $other = $this->patient()->acquire($key, 60);
        $enough = fn () => throw new \DomainException('enough');
        $this->thrown(\DomainException::class, fn () => $this->patient()->acquire($key, wait: null, onWait: $enough));
        self::assertSame(0, $this->patient()->inspect($key)->waiters);
        self::assertTrue($other->release());
        self::assertFalse($this->patient()->inspect($key)->isHeld);
    }

    public function testNobodyHearsOfALeaseThatIsGrantedOrRefusedAtOnce(): void
    {
        $key = self::key();
        $fail = fn () => self::fail('it does not wait');
        $lease = $this->patient()->acquire($key, wait: 60, onWait: $fail);
        $this->thrown(LockBusy::class, fn () => $this->patient()->acquire($key, onWait: $fail));
        self::assertTrue($lease->release());
    }

    public function testAPlaceIsToldOnlyIfOneClaimHasThisOwner(): void
    {
        $key = self::key();
        $lease = $this->patient()->acquire($key, 60);
        $code = '$client = new Lockkeeper\LockClient($arguments[0], getenv("LOCKKEEPER_API_KEY"), $arguments[2]);
            try { $client->acquire($arguments[1], wait: 60); } catch (Throwable) {}';
        foreach (['me' => null, 'somebody' => 1] as $owner => $ahead) {
            [$process] = self::start($code, self::env('PATIENT_URL'), $key, $owner);
            self::eventually(fn () => $this->patient()->inspect($key)->waiters === 1);
            $told = [];
            $enough = function (Wait $wait) use (&$told): void {
                $told[] = $wait->ahead;
                throw new \DomainException();
            };
            $wait = fn () => $this->patient('me')->acquire($key, wait: 60, onWait: $enough);
            $this->thrown(\DomainException::class, $wait);
            self::assertSame([$ahead], $told);
            proc_terminate($process, 9);
            proc_close($process);
            self::eventually(fn () => $this->patient()->inspect($key)->waiters === 0);
        }
        self::assertTrue($lease->release());
    }

    public function testALookThatFailsCostsNothingElse(): void
    {
        $key = self::key();
        $other = $this->client(self::env('PATIENT_URL'))->acquire($key, 3);
        $proxy = new Faults(substr(self::env('PATIENT_URL'), strlen('http://')), []);
        self::assertSame(7, $this->client($proxy->url)->withLock($key, fn () => 7, wait: 60, onWait: fn () => null));
        self::assertFalse($other->release());
    }
}
