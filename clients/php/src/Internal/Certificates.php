<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal The files of TLS: the authorities that are trusted, and the certificate that this client shows. */
final class Certificates
{
    /** Codes of curl for a URL, a file here, or a certificate of either side, that will not do. */
    private const REFUSED = [3, 51, 58, 60, 77, 83, 98];

    /**
     * @param string $ca   a PEM file with the only authorities to trust; empty for those of curl
     * @param string $cert a PEM file with the certificate of this client, and $key with its private key; empty for none
     *
     * @throws \InvalidArgumentException
     */
    public function __construct(
        private readonly string $ca = '',
        private readonly string $cert = '',
        private readonly string $key = '',
    ) {
        if (($cert === '') !== ($key === '')) {
            throw new \InvalidArgumentException('A client certificate needs both of its files: cert and certKey.');
        }
        foreach (array_filter([$ca, $cert, $key]) as $file) {
            is_readable($file) || throw new \InvalidArgumentException("The file $file cannot be read.");
        }
    }

    /** @return array<int, string> options of curl */
    public function options(): array
    {
        $files = [CURLOPT_CAINFO => $this->ca, CURLOPT_SSLCERT => $this->cert, CURLOPT_SSLKEY => $this->key];
        // No others are trusted. It is the last one, because some builds of curl have no such option.
        $files += [CURLOPT_CAPATH => $this->ca === '' ? '' : '/dev/null'];
        return array_filter($files);
    }

    /** @return array<string, string> by the names of LockClient */
    public function settings(): array
    {
        return ['ca' => $this->ca, 'cert' => $this->cert, 'certKey' => $this->key];
    }

    /**
     * What people have to mend if no connection came about, in words; null if the next try may do better.
     *
     * @param int    $code of curl
     * @param string $why  its words
     */
    public static function refusal(int $code, string $why): ?string
    {
        return match (true) {
            preg_match('/wrong version number|unexpected TLS packet/i', $why) === 1
                => 'no TLS is spoken there: is it http://?',
            preg_match('/alert (certificate required|handshake failure|unknown ca|bad certificate)/i', $why) === 1
                => "the service wants a client certificate that it trusts: name its files (cert: and certKey:, "
                    . "LOCKKEEPER_CERT and LOCKKEEPER_CERT_KEY); $why",
            in_array($code, [51, 60], true) && preg_match('/self.signed|issuer|verification failed/i', $why) === 1
                => 'its certificate is not signed by an authority that is trusted here: name the file of that '
                    . "authority (ca:, LOCKKEEPER_CA); $why",
            default => in_array($code, self::REFUSED, true) ? $why : null,
        };
    }
}
