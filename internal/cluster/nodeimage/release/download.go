package release

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// tries is how often a failing server is tried, patience how long a silent one is waited for.
	tries    = 3
	patience = time.Minute
	// mostText bounds a list of checksums, most an archive, in bytes.
	mostText = 1 << 20
	most     = 4 << 30
)

// Fetcher fetches releases of projects.
type Fetcher struct {
	Sites Sites
	// Arch is the architecture as Go names it.
	Arch string
	// Work is a directory on a disk with space for archives.
	Work string
	// Transport makes the requests; nil is Go's default, with the proxies of the environment.
	Transport http.RoundTripper
	// Pause is the time between tries; 0 is a second.
	Pause time.Duration
}

// sum is the expected checksum of a file.
type sum struct {
	algorithm string
	hex       string
}

func (s sum) hash() hash.Hash {
	if s.algorithm == "sha512" {
		return sha512.New()
	}
	return sha256.New()
}

// download fetches a file and checks it by the checksum after the # of its URL, or by the one
// beside the file.
func (f *Fetcher) download(ctx context.Context, at *url.URL) (file string, err error) {
	want, err := f.sumOf(ctx, at)
	if err != nil {
		return "", err
	}
	bare := *at
	bare.Fragment = ""
	file = path.Join(f.Work, "download")
	err = f.again(ctx, func() error {
		got, err := f.save(ctx, bare.String(), file, want.hash())
		if err == nil && got != want.hex {
			return fmt.Errorf("%s has the %s sum %s, and should have %s; it is broken, or another file than was meant: %w", bare.Redacted(), want.algorithm, got, want.hex, errs.Invalid)
		}
		return err
	})
	if err != nil {
		_ = os.Remove(file) // the file is incomplete
		return "", err
	}
	return file, nil
}

// sumOf finds the checksum of a URL. One from beside the file is only as trustworthy as the
// connection.
func (f *Fetcher) sumOf(ctx context.Context, at *url.URL) (sum, error) {
	if at.Fragment != "" {
		algorithm, text, _ := strings.Cut(at.Fragment, ":")
		return readSum(algorithm, text, at.Redacted())
	}
	if at.Scheme == "http" && !loopback(at.Hostname()) {
		return sum{}, fmt.Errorf("%s: anybody on the way could change it; want https, or the sum of the file: %[1]s#sha256:...: %[2]w", at.Redacted(), errs.Invalid)
	}
	name := path.Base(at.Path)
	for _, beside := range []struct{ algorithm, file string }{
		{"sha512", name + ".sha512"}, {"sha256", name + ".sha256"}, {"sha512", "SHA512SUMS"}, {"sha256", "SHA256SUMS"},
	} {
		list := *at
		list.Path = path.Join(path.Dir(at.Path), beside.file)
		text, err := f.text(ctx, list.String())
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return sum{}, err
		}
		if hex := listed(text, name); hex != "" {
			return readSum(beside.algorithm, hex, list.Redacted())
		}
	}
	return sum{}, fmt.Errorf("there is no %s, or no sum beside it (%s.sha512, %[2]s.sha256, SHA256SUMS); say it behind the URL: %[1]s#sha256:...: %[3]w", at.Redacted(), name, errs.NotFound)
}

// listed is the checksum of a file in a list as sha256sum writes it, or in a file with a single
// checksum.
func listed(text, name string) string {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 1:
			return words[0]
		case len(words) == 2 && path.Base(strings.TrimPrefix(words[1], "*")) == name:
			return words[0]
		}
	}
	return ""
}

func readSum(algorithm, text, from string) (sum, error) {
	raw, err := hex.DecodeString(strings.ToLower(text))
	size := map[string]int{"sha256": sha256.Size, "sha512": sha512.Size}[algorithm]
	if err != nil || size == 0 || len(raw) != size {
		return sum{}, fmt.Errorf("%s: %.140q is not a checksum; want sha256: or sha512: and its digits: %w", from, algorithm+":"+text, errs.Invalid)
	}
	return sum{algorithm: algorithm, hex: hex.EncodeToString(raw)}, nil
}

// loopback: nobody can tamper with the connection.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// text is the content of a small file at a URL.
func (f *Fetcher) text(ctx context.Context, at string) (text string, err error) {
	err = f.again(ctx, func() error {
		return f.get(ctx, at, func(body io.Reader) error {
			read, err := io.ReadAll(io.LimitReader(body, mostText))
			text = string(read)
			return err
		})
	})
	return text, err
}

// save writes the content of a URL into a file, and returns its checksum.
func (f *Fetcher) save(ctx context.Context, at, file string, h hash.Hash) (string, error) {
	err := f.get(ctx, at, func(body io.Reader) (err error) {
		out, err := os.Create(file)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
		n, err := io.Copy(io.MultiWriter(out, h), bufio.NewReaderSize(io.LimitReader(body, most+1), 1<<20))
		if err == nil && n > most {
			return fmt.Errorf("%s is larger than %d bytes: %w", at, int64(most), errs.Invalid)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// get requests a URL, and fails when the server is silent for too long.
func (f *Fetcher) get(ctx context.Context, at string, use func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("no byte for %s: %w", patience, errs.Unavailable)) })
	defer silence.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", at, errs.Invalid, err)
	}
	client := http.Client{Transport: f.Transport, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return errors.New("it leads on for ever")
		}
		if via[0].URL.Scheme == "https" && to.URL.Scheme != "https" {
			return fmt.Errorf("it leads to %s, which is not https: %w", to.URL.Redacted(), errs.Invalid)
		}
		return nil
	}}
	answer, err := client.Do(request)
	if err != nil {
		return why(ctx, request.URL, err)
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound, answer.StatusCode == http.StatusForbidden && strings.Contains(request.URL.Host, "k8s.io"):
		return fmt.Errorf("%s: there is no such file: %w", request.URL.Redacted(), errs.NotFound)
	case answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%s: the server says %s: %w", request.URL.Redacted(), answer.Status, errs.Unavailable)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: the server says %s: %w", request.URL.Redacted(), answer.Status, errs.Invalid)
	}
	if err := use(&activeReader{answer.Body, silence}); err != nil {
		return why(ctx, request.URL, err)
	}
	return nil
}

// why explains an error: a full disk is not the server's fault.
func why(ctx context.Context, at *url.URL, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", at.Redacted(), cause)
	}
	var local *os.PathError
	var network net.Error
	var refused *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused), errors.As(err, &local), errors.Is(err, errs.Invalid):
		return fmt.Errorf("%s: %w", at.Redacted(), err)
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: %w: %w", at.Redacted(), errs.Unavailable, err)
	}
	return fmt.Errorf("%s: %w", at.Redacted(), err)
}

// activeReader restarts the timeout at each read that returns bytes.
type activeReader struct {
	io.Reader
	silence *time.Timer
}

func (r *activeReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.silence.Reset(patience)
	return n, err
}

// again retries errors of a server that may pass.
func (f *Fetcher) again(ctx context.Context, do func() error) error {
	pause := f.Pause
	if pause == 0 {
		pause = time.Second
	}
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == tries || !errors.Is(err, errs.Unavailable) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause * time.Duration(try)):
		}
	}
}
