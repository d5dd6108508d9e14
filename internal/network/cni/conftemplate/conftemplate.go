// Package conftemplate makes the CNI configuration of a node from an operator's template and the
// pod CIDR that the kubelet reports.
package conftemplate

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// File is the name of the configuration that berth writes.
const File = "10-berth.conflist"

// Values are what a template can refer to. They have the names of containerd's conf_template.
type Values struct {
	// PodCIDR is the first of the node's ranges.
	PodCIDR string
	// PodCIDRRanges are all of them, at most one of each family.
	PodCIDRRanges []string
	// Routes are the default routes of the families of the ranges, "0.0.0.0/0" and "::/0".
	Routes []string
}

// ValuesOf returns the values for a node's ranges, of which there is one at least.
func ValuesOf(ranges []netip.Prefix) Values {
	values := Values{PodCIDR: ranges[0].String()}
	var v4, v6 []string
	for _, r := range ranges {
		values.PodCIDRRanges = append(values.PodCIDRRanges, r.String())
		if r.Addr().Is4() {
			v4 = []string{"0.0.0.0/0"}
		} else {
			v6 = []string{"::/0"}
		}
	}
	values.Routes = append(v4, v6...)
	return values
}

// Template is an operator's template.
type Template struct {
	path   string
	text   []byte
	parsed *template.Template
}

// Load reads a template, in the language of Go's text/template. An error names the file and the
// line.
func Load(path string) (*Template, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the template of the CNI configuration: %w", err)
	}
	return parse(path, text)
}

// Current returns the template as its file is now: t itself while the file has not changed. An error is that of Load; the
// template is t then.
func (t *Template) Current() (*Template, error) {
	text, err := os.ReadFile(t.path)
	if err != nil {
		return t, fmt.Errorf("cannot read the template of the CNI configuration: %w", err)
	}
	if bytes.Equal(text, t.text) {
		return t, nil
	}
	changed, err := parse(t.path, text)
	if err != nil {
		return t, err
	}
	return changed, nil
}

func parse(path string, text []byte) (*Template, error) {
	parsed, err := template.New(path).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("cannot read the template of the CNI configuration: %w: %w", err, errs.Invalid)
	}
	t := &Template{path, text, parsed}
	// With both families, so that a fault is reported at the start and not when the kubelet comes.
	example := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	_, err = t.Render(ValuesOf(example))
	return t, err
}

// Render returns the configuration for the values. An error of kind Invalid says what is wrong with
// it.
func (t *Template) Render(values Values) ([]byte, error) {
	var out bytes.Buffer
	if err := t.parsed.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("cannot make a CNI configuration from its template: %w: %w", err, errs.Invalid)
	}
	list, err := libcni.NetworkConfFromBytes(out.Bytes())
	if err == nil && list.Name == "" {
		err = errors.New("the network has no name")
	}
	if err == nil && len(list.Plugins) == 0 {
		err = errors.New("the network has no plugins")
	}
	if err != nil {
		return nil, fmt.Errorf("the template %s makes no valid CNI configuration for the pod CIDRs %v: %w: %w", t.path, values.PodCIDRRanges, err, errs.Invalid)
	}
	return out.Bytes(), nil
}

// Write renders the template to File in the directory dir, which it makes if it is missing. It
// reports whether the content changed.
func (t *Template) Write(dir string, values Values) (changed bool, err error) {
	content, err := t.Render(values)
	if err != nil {
		return false, err
	}
	path := filepath.Join(dir, File)
	if present, err := os.ReadFile(path); err == nil && bytes.Equal(present, content) {
		return false, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("cannot make the directory of CNI configurations: %w", err)
	}
	// The name of a file that is being written must have none of a configuration's extensions.
	temp := path + ".tmp"
	err = errs.IgnoreNotExist(os.Remove(temp))
	if err == nil {
		err = sysfile.WriteSynced(temp, content)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return false, fmt.Errorf("cannot write the CNI configuration: %w", err)
	}
	return true, nil
}
