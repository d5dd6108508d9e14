package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// remoteFor bounds the fetching of a node file.
const remoteFor = time.Minute

// IsRemote reports whether a node file is on a web server.
func IsRemote(file string) bool { return strings.Contains(file, "://") }

// Shown is a node file's name in messages: without a digest, a password or a signature.
func Shown(file string) string {
	if !IsRemote(file) {
		return file
	}
	file, _, _ = strings.Cut(file, "#")
	return provision.ShowSource(file)
}

// wantedSum is the digest that a node file must have: of --sha256, or of the URL's end. It is empty
// if none is given, which only a file of this machine may have.
func wantedSum(file, flag string) (digest.Digest, error) {
	end := ""
	if IsRemote(file) {
		u, err := url.Parse(file)
		switch {
		case err != nil || u.Host == "":
			return "", fmt.Errorf("node file %s: want https://HOST/PATH#sha256=DIGEST: %w", Shown(file), errs.Invalid)
		case u.Scheme != "https":
			return "", fmt.Errorf("node file %s: %s is not supported, only https: %w", Shown(file), u.Scheme, errs.Unsupported)
		case u.Fragment != "" && !strings.HasPrefix(u.Fragment, "sha256="):
			return "", fmt.Errorf("node file %s: want #sha256=DIGEST at the end, not #%s: %w", Shown(file), u.Fragment, errs.Invalid)
		}
		end = strings.TrimPrefix(u.Fragment, "sha256=")
	}
	flag = strings.TrimPrefix(flag, "sha256:")
	switch {
	case end == "" && flag == "" && IsRemote(file):
		return "", fmt.Errorf("node file %s: a file of a server needs its digest, by --sha256 or as #sha256=DIGEST at the end of the URL: %w", Shown(file), errs.Invalid)
	case end == "" && flag == "":
		return "", nil
	case end != "" && flag != "" && end != flag:
		return "", fmt.Errorf("node file %s: --sha256 and the end of the URL give two digests: %w", Shown(file), errs.Invalid)
	case end == "":
		end = flag
	}
	sum := digest.NewDigestFromEncoded(digest.SHA256, end)
	if err := sum.Validate(); err != nil {
		return "", fmt.Errorf("node file %s: %q is not a SHA-256 digest, 64 hexadecimal digits: %w", Shown(file), end, errs.Invalid)
	}
	return sum, nil
}

// checkSum refuses a node file with another digest.
func checkSum(file string, data []byte, want digest.Digest) error {
	if want == "" {
		return nil
	}
	if got := digest.FromBytes(data); got != want {
		return fmt.Errorf("node file %s has the digest %s, not %s: it is not the expected file: %w", Shown(file), got, want, errs.Invalid)
	}
	return nil
}

// fetch reads a node file from its server, with one byte more than a node file may have.
// Nothing but https is followed.
func fetch(ctx context.Context, transport http.RoundTripper, file string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, remoteFor)
	defer cancel()
	file, _, _ = strings.Cut(file, "#")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, file, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch node file %s: %w", Shown(file), errs.Invalid)
	}
	req.Header.Set("Accept-Encoding", "identity")
	const redirects = 10
	client := &http.Client{Transport: transport, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if to.URL.Scheme != "https" || len(via) > redirects {
			return fmt.Errorf("the server redirects to %s, which berth does not follow: %w", provision.ShowSource(to.URL.String()), errs.Unsupported)
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		var in *url.Error
		if errors.As(err, &in) {
			err = in.Err // without the URL, which may hold a password
		}
		return nil, fmt.Errorf("cannot fetch node file %s: %w: %w", Shown(file), errs.Unavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot fetch node file %s: the server says %s: %w", Shown(file), resp.Status, errs.NotFound)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, nodefile.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("cannot fetch node file %s: the connection broke: %w: %w", Shown(file), errs.Unavailable, err)
	}
	return data, nil
}
