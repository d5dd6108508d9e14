// Package lookaside fetches the simple signatures of images, which lie beside the registry: on a web server or in a
// directory, as the files of containers-registries.d(5) say. It trusts nothing that it fetches.
package lookaside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
)

// fallback is where signatures are if no file says it.
const fallback = "file:///var/lib/containers/sigstore"

const (
	// maxFile bounds each file of the configuration, and maxSignature each signature, in bytes.
	maxFile      = 1 << 20
	maxSignature = 1 << 20
	// timeout bounds the request for one signature.
	timeout = 30 * time.Second
)

// Config says where the signatures of images are.
type Config struct {
	// docker has the sections by their scope, and files where each was read. other is that of all other scopes.
	docker map[string]section
	other  section
	files  map[string]string
}

// section is what a scope has. The names that begin with sigstore are older ones.
type section struct {
	Lookaside string `yaml:"lookaside"`
	Sigstore  string `yaml:"sigstore"`
}

// base is where the signatures of the scope are, "" if the section does not say it.
func (s section) base() string {
	if s.Lookaside != "" {
		return s.Lookaside
	}
	return s.Sigstore
}

// Read reads all files *.yaml of a directory. A directory that does not exist has none.
func Read(dir string) (*Config, error) {
	c := &Config{docker: map[string]section{}, files: map[string]string{}}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read where signatures are: %w", err)
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".yaml" {
			continue
		}
		file := filepath.Join(dir, entry.Name())
		if err := c.read(file); err != nil {
			return nil, fmt.Errorf("cannot read where signatures are: %s: %w", file, err)
		}
	}
	return c, nil
}

// read adds the sections of a file. A section may be in one file only: the order of files decides nothing.
func (c *Config) read(file string) error {
	data, err := readFile(file, maxFile)
	if err != nil {
		return err
	}
	var content struct {
		Default *section           `yaml:"default-docker"`
		Docker  map[string]section `yaml:"docker"`
	}
	if err := yaml.Unmarshal(data, &content); err != nil {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	add := func(name string, s section) error {
		if other, ok := c.files[name]; ok {
			return fmt.Errorf("%s is in %s, too; remove one of them: %w", name, other, errs.Invalid)
		}
		c.files[name] = file
		if s.base() == "" {
			return nil
		}
		if _, err := parse(s.base()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	if content.Default != nil {
		if err := add("default-docker", *content.Default); err != nil {
			return err
		}
		c.other = *content.Default
	}
	for scope, s := range content.Docker {
		scope = names.Scope(scope)
		if err := add("docker."+scope, s); err != nil {
			return err
		}
		c.docker[scope] = s
	}
	return nil
}

// Base returns where the signatures of an image are. scopes are those of its name, the most specific one first, in the form
// of names.Scope.
func (c *Config) Base(scopes []string) string {
	for _, scope := range scopes {
		if base := c.docker[scope].base(); base != "" {
			return base
		}
	}
	if base := c.other.base(); base != "" {
		return base
	}
	return fallback
}

// parse reads a base.
func parse(base string) (*url.URL, error) {
	at, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	switch {
	case at.Scheme == "file" && at.Host == "" && filepath.IsAbs(at.Path):
	case (at.Scheme == "http" || at.Scheme == "https") && at.Host != "":
	default:
		return nil, fmt.Errorf("%q: want file:///ABSOLUTE/PATH, http://HOST or https://HOST: %w", base, errs.Invalid)
	}
	return at, nil
}

// Signature is one signature.
type Signature struct {
	// Place names it.
	Place string
	Data  []byte
	// Fault says why it cannot be read, "" if it can.
	Fault string
}

// Fetch returns the signatures of a manifest of a repository, the first of them up to most. Their numbers are without a
// gap. got is called after each of them. Kind Unavailable if the server does not answer.
func Fetch(ctx context.Context, base string, repository reference.Named, dgst digest.Digest, most int, got func()) ([]Signature, error) {
	at, err := parse(base)
	if err != nil {
		return nil, err
	}
	var found []Signature
	for len(found) < most {
		one := *at
		one.Path = strings.TrimSuffix(at.Path, "/") + "/" + reference.Path(repository) + "@" + dgst.Algorithm().String() + "=" + dgst.Encoded() +
			fmt.Sprintf("/signature-%d", len(found)+1)
		one.RawPath = ""
		data, err := fetch(ctx, &one)
		s := Signature{Place: one.Redacted(), Data: data}
		switch {
		case errors.Is(err, errs.NotFound), errors.Is(err, fs.ErrNotExist):
			return found, nil
		case errors.Is(err, errs.Invalid):
			s.Fault = errs.Message(err)
		case err != nil:
			return nil, fmt.Errorf("cannot fetch the signature %s: %w", s.Place, err)
		}
		got()
		found = append(found, s)
	}
	return found, nil
}

// fetch returns one signature: kind NotFound, or fs.ErrNotExist, if there is none, Invalid if it cannot be used.
func fetch(ctx context.Context, at *url.URL) ([]byte, error) {
	if at.Scheme == "file" {
		return readFile(path.Clean(at.Path), maxSignature)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	// The configuration names the host. It cannot send berth to another one, such as an address of the node alone.
	client := &http.Client{CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if to.URL.Host != at.Host || to.URL.Scheme != at.Scheme || len(via) >= 10 {
			return fmt.Errorf("it redirects to %s, and only redirects to the same host are followed", to.URL.Redacted())
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Unavailable)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, errs.NotFound
	default:
		return nil, fmt.Errorf("the server answers %s: %w", resp.Status, errs.Unavailable)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxSignature+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Unavailable)
	}
	if len(data) > maxSignature {
		return nil, tooLarge(maxSignature)
	}
	return data, nil
}

// readFile reads a regular file of bounded size.
func readFile(file string, most int64) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file: %w", errs.Invalid)
	}
	if info.Size() > most {
		return nil, tooLarge(most)
	}
	return os.ReadFile(file)
}

func tooLarge(most int64) error {
	return fmt.Errorf("it has more than %d bytes: %w", most, errs.Invalid)
}
