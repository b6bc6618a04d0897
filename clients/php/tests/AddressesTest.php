<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Internal\ApiKey;
use Lockkeeper\Internal\Certificates;
use Lockkeeper\Internal\Lookup;
use Lockkeeper\Internal\Race;
use Lockkeeper\Internal\Request;
use Lockkeeper\Internal\Transport;

/** A name with several addresses, at one of which nothing answers: the queue of its connections is full. */
final class AddressesTest extends TestCase
{
    /** Prints its port and lives until it is killed. */
    private const SILENT = '$context = stream_context_create(["socket" => ["backlog" => 0]]);
        $listener = stream_socket_server("tcp://127.0.0.2:$arguments[0]", context: $context);
        for ($full = []; count($full) < 4;) {
            $full[] = stream_socket_client("tcp://127.0.0.2:$arguments[0]", $code, $why, null,
                STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT);
        }
        usleep(300_000);
        echo "full\n";
        sleep(600);';

    /** A proxy at 127.0.0.1, and silence at 127.0.0.2 with its port. */
    private function ground(string ...$faults): array
    {
        $proxy = self::faults(...$faults);
        $port = (int) parse_url($proxy->url, PHP_URL_PORT);
        [$process, $output] = self::start(self::SILENT, (string) $port);
        self::assertSame("full\n", fgets($output));
        return [$proxy, $port, $process];
    }

    public function testTheFirstThatAnswersWinsAndOneThatRefusesCostsNothing(): void
    {
        [$proxy, $port, $process] = $this->ground();
        foreach ([['127.0.0.2', '127.0.0.1'], ['127.0.0.9', '127.0.0.2', '127.0.0.1']] as $addresses) {
            $race = new Race($addresses, $port);
            self::eventually(function () use ($race, &$winner): bool {
                return ($winner = $race->winner()) !== null;
            });
            self::assertSame('127.0.0.1', $winner);
        }
        self::assertNotEmpty($proxy->url);
        self::assertNull((new Race(['127.0.0.2', '127.0.0.9'], $port))->winner());
        self::assertNull(Race::of('http://127.0.0.1:1')->winner());
        proc_terminate($process, 9);
    }

    public function testASilentAddressIsPassedAndTheGoodOneIsRemembered(): void
    {
        [$proxy, $port, $process] = $this->ground();
        // With these limits no single connection to the silent address would end.
        $code = 'eval("namespace Lockkeeper\\Internal;
            function gethostbynamel(string \$host): array { echo \"asked \"; return [\"127.0.0.2\", \"127.0.0.1\"]; }");
            $client = new Lockkeeper\LockClient($arguments[0], getenv("LOCKKEEPER_API_KEY"),
                connectTimeout: 600.0, answerTimeout: 600.0);
            for ($i = 0; $i < 2; $i++) {
                echo $client->acquire($arguments[1])->release() ? "released " : "lost ";
            }';
        [, $printed] = self::script($code, "http://127.0.0.2:$port", self::key());
        self::assertSame('asked released released ', $printed);
        self::assertCount(4, $proxy->requests());
        proc_terminate($process, 9);
    }

    public function testTheOthersAreTriedWhenTheGoodOneHasGone(): void
    {
        [$proxy, $port, $process] = $this->ground('pass', 'stop');
        $other = new Faults(substr(self::env('URL'), strlen('http://')), [], '', '', '', "127.0.0.3:$port");
        $code = 'eval("namespace Lockkeeper\Internal;
            function gethostbynamel(string \$host): array { return [\"127.0.0.2\", \$GLOBALS[\"good\"]]; }");
            $client = new Lockkeeper\LockClient($arguments[0], getenv("LOCKKEEPER_API_KEY"),
                connectTimeout: 600.0, answerTimeout: 600.0);
            $good = "127.0.0.1";
            $lease = $client->acquire($arguments[1], 60);
            $good = "127.0.0.3";
            $lease->refresh();
            echo $lease->release() ? "released" : "lost";';
        [, $printed] = self::script($code, "http://127.0.0.2:$port", self::key());
        self::assertSame('released', $printed);
        self::assertCount(2, $proxy->requests());
        self::assertCount(2, $other->requests());
        proc_terminate($process, 9);
    }

    /** @dataProvider ways */
    #[\PHPUnit\Framework\Attributes\DataProvider('ways')]
    public function testNoNameIsLookedUpWhereTheAddressIsKnown(bool $isProxy): void
    {
        $proxy = self::faults();
        $named = str_replace('127.0.0.1', 'no-such-name.invalid', $proxy->url);
        $ways = $isProxy ? ['http://no-such-service.invalid', $named] : [$named, ''];
        $transport = new Transport($ways[0], ApiKey::of('', null), 2.0, $ways[1], new Certificates());
        $transport->useAddress('127.0.0.1');
        $transport->send(new Request('GET', '/livez', '', null, null, 5.0));
        self::assertCount(1, $proxy->requests());
        self::assertSame('127.0.0.1', $transport->address());
    }

    public static function ways(): array
    {
        return ['the name of the service' => [false], 'that of a proxy' => [true]];
    }

    public function testAnAddressThatHasGoneIsReplacedByAnotherProcess(): void
    {
        $proxy = self::faults();
        $url = str_replace('127.0.0.1', 'localhost', $proxy->url);
        $transport = new Transport($url, ApiKey::of('', null), 2.0, '', new Certificates());
        $transport->useAddress('127.0.0.9');
        self::eventually(function () use ($transport): bool {
            try {
                $transport->send(new Request('GET', '/livez', '', null, null, 5.0));
                return true;
            } catch (\Lockkeeper\Exception\ServiceUnavailable) {
                return false;
            }
        });
        self::assertSame('127.0.0.1', $transport->address());
        $lookup = new Lookup(['url' => 'http://localhost:1', 'apiKey' => '']);
        $began = microtime(true);
        self::assertNull($lookup->winner());
        unset($lookup);
        self::assertTook(0.0, $began);
    }
}
