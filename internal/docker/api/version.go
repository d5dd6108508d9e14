package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// versionLife is how long an answer about the engine's version is used.
const versionLife = time.Minute

// versionCache is the last answer about the engine's version.
type versionCache struct {
	mu    sync.Mutex
	known client.ServerVersionResult
	until time.Time
}

func (v *versionCache) read() (known client.ServerVersionResult, fresh bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known, time.Now().Before(v.until)
}

func (v *versionCache) write(found client.ServerVersionResult) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known, v.until = found, time.Now().Add(versionLife)
}

// forget ends the use of the answer: the engine was replaced.
func (v *versionCache) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.until = time.Time{}
}

// Version returns the engine's version, from memory if it was read in the last minute. Kind
// Unsupported if the engine is too old for berth, or too new.
func (c *Client) Version(ctx context.Context) (client.ServerVersionResult, error) {
	known, fresh := c.version.read()
	if fresh {
		return known, nil
	}
	found, err := call(ctx, c, "version", func(ctx context.Context, moby *client.Client) (client.ServerVersionResult, error) {
		return moby.ServerVersion(ctx, client.ServerVersionOptions{})
	})
	if tooNew := c.tooNew(err); tooNew != nil {
		return found, tooNew
	}
	if err != nil {
		return found, err
	}
	if known.Version != "" && (known.Version != found.Version || known.APIVersion != found.APIVersion) {
		// Not every engine names itself in each answer.
		if s := c.current.Load(); s != nil && !sameVersion(s.engine.apiVersion, found.APIVersion) {
			s.outdated.Store(true)
		}
	}
	c.version.write(found)
	return found, nil
}

// apiVersion is a version of the API. The third number is 0 for one of the form "x.y".
type apiVersion [3]int

func (v apiVersion) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

var errNoVersion = errors.New("a version of the API has the form x.y or x.y.z")

// parseVersion reads a version of the form "x.y" or "x.y.z".
func parseVersion(text string) (apiVersion, error) {
	var v apiVersion
	parts := strings.Split(text, ".")
	if len(parts) != 2 && len(parts) != 3 {
		return v, fmt.Errorf("%q: %w: %w", text, errNoVersion, errs.Invalid)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return v, fmt.Errorf("%q: %w: %w", text, errNoVersion, errs.Invalid)
		}
		v[i] = int(n)
	}
	return v, nil
}

// AtLeast reports whether a version of the API is another one or later. "x.y" is "x.y.0". What
// is not a version is older than every version.
func AtLeast(version, least string) bool {
	v, err := parseVersion(version)
	if err != nil {
		return false
	}
	other, err := parseVersion(least)
	if err != nil {
		return true
	}
	for i := range v {
		if v[i] != other[i] {
			return v[i] > other[i]
		}
	}
	return true
}

func sameVersion(a, b string) bool { return AtLeast(a, b) && AtLeast(b, a) }
