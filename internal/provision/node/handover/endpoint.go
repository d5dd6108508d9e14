package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// KubeletEndpoint points a kubelet that berth does not manage at the new runtime. It changes the
// endpoint in one of the kubelet's files, and nothing else.
type KubeletEndpoint struct {
	M provision.Meta
	// Path is a file that the kubelet's settings are in: a configuration, an environment
	// file, or a unit.
	Path string
	// Endpoint is "unix:///…".
	Endpoint string
	// Add is set for a configuration that gets an endpoint if it names none: no other file does.
	Add bool
}

// ID is "file PATH".
func (k KubeletEndpoint) ID() string { return "file " + k.Path }

// Meta returns M.
func (k KubeletEndpoint) Meta() provision.Meta { return k.M }

// Objects is the file, if it exists and names an endpoint.
func (k KubeletEndpoint) Objects(_ context.Context, host provision.Host) ([]provision.Object, error) {
	old, _, err := k.contents(host)
	if err != nil || old == nil {
		return nil, err
	}
	return []provision.Object{{Kind: provision.KindFile, Name: k.Path}}, nil
}

// endpoints matches an endpoint as an option, and as a field of YAML and of JSON; the second group is it.
func endpoints() *regexp.Regexp {
	return regexp.MustCompile(`(--container-runtime-endpoint[= ]"?|(?m:^)[ \t]*containerRuntimeEndpoint:[ \t]*"?|"containerRuntimeEndpoint"\s*:\s*")([^\s"]+)`)
}

// sizeLimit bounds the files, in bytes.
const sizeLimit = 1 << 20

// added is a configuration without an endpoint, with one.
func (k KubeletEndpoint) added(old []byte) ([]byte, error) {
	if bytes.HasPrefix(bytes.TrimSpace(old), []byte("{")) {
		return nil, fmt.Errorf("%s is JSON and names no endpoint, so that the kubelet uses its default; add containerRuntimeEndpoint: %w", k.Path, errs.State)
	}
	empty := regexp.MustCompile(`(?m)^[ \t]*containerRuntimeEndpoint:[ \t]*(""|'')?[ \t]*$\n?`)
	rest := bytes.TrimRight(empty.ReplaceAll(old, nil), "\n")
	if len(rest) > 0 {
		rest = append(rest, '\n')
	}
	if key := regexp.MustCompile(`(?m)^( *)[\w"']`).FindSubmatch(rest); key != nil { // all fields have one indentation
		rest = append(rest, key[1]...)
	}
	return append(rest, "containerRuntimeEndpoint: "+k.Endpoint+"\n"...), nil
}

// contents returns the file as it is and as it should be; nil when it names no
// endpoint.
func (k KubeletEndpoint) contents(host provision.Host) (old, wanted []byte, err error) {
	r, err := host.Files().Open(k.Path)
	if errors.Is(err, errs.NotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read %s: %w", k.Path, err)
	}
	defer r.Close()
	old, err = io.ReadAll(io.LimitReader(r, sizeLimit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read %s: %w", k.Path, err)
	}
	if len(old) > sizeLimit {
		return nil, nil, fmt.Errorf("%s has more than %d MiB, too many for settings of a kubelet: %w", k.Path, sizeLimit>>20, errs.State)
	}
	if !endpoints().Match(old) {
		if !k.Add {
			return nil, nil, nil
		}
		wanted, err = k.added(old)
		return old, wanted, err
	}
	replaced := endpoints().ReplaceAll(old, []byte("${1}"+strings.ReplaceAll(k.Endpoint, "$", "$$")))
	return old, replaced, nil
}

// Check compares the endpoint.
func (k KubeletEndpoint) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	old, wanted, err := k.contents(host)
	if err != nil || bytes.Equal(old, wanted) {
		return provision.Change{}, err
	}
	if err := provision.RefuseLink(host.Files(), k.Path); err != nil {
		return provision.Change{}, err
	}
	from := "" // the kubelet's default
	if match := endpoints().FindSubmatch(old); match != nil {
		from = string(match[2])
	}
	return provision.Change{Diffs: []provision.Diff{{
		Object: provision.Object{Kind: provision.KindFile, Name: k.Path}, Action: provision.Modify, Reason: "the kubelet talks to another runtime",
		Fields: []provision.Field{{Name: "endpoint", From: from, To: k.Endpoint}},
	}}}, nil
}

// Apply replaces the endpoint.
func (k KubeletEndpoint) Apply(ctx context.Context, host provision.Host) error {
	old, wanted, err := k.contents(host)
	if err != nil || bytes.Equal(old, wanted) {
		return err
	}
	if err := provision.RefuseLink(host.Files(), k.Path); err != nil {
		return err
	}
	info, err := host.Files().Stat(k.Path)
	if err != nil {
		return err
	}
	err = host.Files().Write(k.Path, bytes.NewReader(wanted), provision.Attr{Mode: info.Mode, UID: info.UID, GID: info.GID})
	if err == nil && host.Live() && strings.Contains(k.Path, "/systemd/system/") {
		return host.Units().Reload(ctx)
	}
	return err
}
