package lockkeeper

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

var (
	urlOfHost    = regexp.MustCompile(`^https?://[^/?#@\s]+(/[^?#\s]*)?$`)
	visibleASCII = regexp.MustCompile(`^[ -~]*$`)
)

// wrongURL returns what is wrong with the URL of a service, or nothing.
func wrongURL(address string) string {
	parts, err := url.Parse(address)
	switch {
	case address == "unix:":
		return "name a file, as in unix:/run/lockkeeper/lockkeeper.sock"
	case strings.HasPrefix(address, "unix:"):
		return ""
	case !strings.HasPrefix(address, "http:") && !strings.HasPrefix(address, "https:"):
		return "use http:// or https://, or unix:FILE"
	case err == nil && (parts.User != nil || parts.RawQuery != "" || parts.ForceQuery || strings.Contains(address, "#")):
		return "only a host, a port and a path are allowed"
	case err != nil || parts.Hostname() == "" || !isPort(parts.Port()) || !urlOfHost.MatchString(address):
		return "write it like http://host:8080"
	case strings.HasSuffix(parts.Path, "/locks"): // It would work, but with other keys than every other client's.
		return "leave out /locks, as in http://host:8080"
	}
	return ""
}

// isPort says whether this may be the port of a URL, which may have none.
func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return text == "" || err == nil && port > 0
}

// shown is a URL without a password that it may have.
func shown(address string) string {
	if _, after, hasUser := strings.Cut(address, "@"); hasUser {
		return "...@" + after[strings.LastIndex(after, "@")+1:]
	}
	return address
}

// headerOf returns what makes the header of each request. A key in a file is read each time: a new one needs no restart.
// While the file has none, as it is being rewritten, the last one counts.
func headerOf(config Config) (func() http.Header, error) {
	file := setting(config.APIKeyFile, os.Getenv("LOCKKEEPER_API_KEY_FILE"))
	secret := setting(config.APIKey, os.Getenv("LOCKKEEPER_API_KEY"))
	if config.APIKey != "" {
		file = ""
	}
	read := func() (http.Header, error) {
		key := secret
		if file != "" {
			text, err := os.ReadFile(file)
			if err != nil {
				told, _ := inWords(err)
				return nil, fmt.Errorf("the API key in %s cannot be read: %s", file, told)
			}
			key = string(text)
		}
		header := http.Header{"Content-Type": {"application/json"}}
		switch key = strings.TrimRight(key, "\r\n"); {
		case key == "" && file != "":
			return nil, fmt.Errorf("%s has no API key", file)
		case strings.ContainsAny(key, "\r\n"):
			return nil, errors.New("the API key has a line break: set Config.APIKey, LOCKKEEPER_API_KEY or the file to one line" + named(file))
		case !visibleASCII.MatchString(key):
			return nil, errors.New("the API key has characters besides visible ASCII" + named(file))
		case key != "":
			header.Set("Authorization", "Bearer "+key)
		}
		return header, nil
	}
	last, err := read()
	if err != nil {
		return nil, fmt.Errorf("lockkeeper: %w", err)
	}
	var mutex sync.Mutex
	return func() http.Header {
		header, err := read()
		mutex.Lock()
		defer mutex.Unlock()
		if err == nil {
			last = header
		}
		return last.Clone()
	}, nil
}

func named(file string) string {
	if file == "" {
		return ""
	}
	return " (" + file + ")"
}

// trustOf returns the settings of TLS.
func trustOf(config Config) (*tls.Config, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if config.HTTP != nil {
		return trust, nil
	}
	if file := setting(config.CA, os.Getenv("LOCKKEEPER_CA")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			told, _ := inWords(err)
			return nil, fmt.Errorf("lockkeeper: Config.CA: cannot read %s: %s; name a PEM file that this user may read", file, told)
		}
		if trust.RootCAs = x509.NewCertPool(); !trust.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("lockkeeper: Config.CA: %s has no certificate: it needs a part -----BEGIN CERTIFICATE-----", file)
		}
	}
	cert, key := setting(config.Cert, os.Getenv("LOCKKEEPER_CERT")), setting(config.CertKey, os.Getenv("LOCKKEEPER_CERT_KEY"))
	if cert == "" && key == "" {
		return trust, nil
	} else if cert == "" || key == "" {
		return nil, errors.New("lockkeeper: Config.Cert and Config.CertKey belong together: set both, or neither")
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("Config.Cert: %s with %s: %w", cert, key, err)
		}
		return &pair, nil
	}
	trust.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	if _, err := read(); err != nil {
		return nil, fmt.Errorf("lockkeeper: %w", err)
	}
	return trust, nil
}

// inWords says what an error means for people, and whether it stays the same however often one asks.
func inWords(err error) (told string, isFinal bool) {
	var record tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var number syscall.Errno
	var name *net.DNSError
	var asked *url.Error
	switch {
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "no TLS is spoken there: is it http://?", true
	case errors.As(err, &authority):
		return "its certificate is not signed by an authority that is trusted here: name the file of that authority " +
			"(Config.CA, LOCKKEEPER_CA)", true
	case strings.Contains(err.Error(), "remote error: tls:") && strings.Contains(err.Error(), "certificate"):
		return "it asks for a client certificate that it trusts: name its files (Config.Cert and Config.CertKey, LOCKKEEPER_CERT " +
			"and LOCKKEEPER_CERT_KEY)", true
	case strings.Contains(err.Error(), "x509: "):
		_, why, _ := strings.Cut(err.Error(), "x509: ")
		return "its certificate is not accepted: " + why, true
	case errors.As(err, &number):
		return number.Error(), false
	case errors.As(err, &name):
		return name.Error(), false
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed before the end of the answer", false
	case errors.As(err, &asked): // without the URL, which repeats the key
		return asked.Err.Error(), false
	}
	return err.Error(), false
}

// refusal is what to do about a request that the service refuses.
func refusal(code, detail string, hasAPIKey bool) string {
	const settings = "Config.APIKey, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"
	switch {
	case code == "unauthenticated" && hasAPIKey:
		return "unknown API key: look at " + settings
	case code == "unauthenticated":
		return "the service asks for an API key: set " + settings
	case code == "forbidden":
		return detail + "; use an API key with this permission and prefix"
	}
	return detail + "; correct the request"
}
