package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/manifest"
	"github.com/berthrun/berth/internal/registries"
)

// Options are settings from outside of a cluster file.
type Options struct {
	// Name overrides the cluster file's name: --name, or KIND_CLUSTER_NAME.
	Name string
	// Image overrides every node's image: --image.
	Image string
	// OfKind: without a cluster file, the cluster is the one that kind would create.
	OfKind bool
	// Dir is the base of relative host paths; empty is the working directory.
	Dir string
}

// maxFile bounds a cluster file, in bytes.
const maxFile = 4 << 20

// ReadFile returns the text of a cluster file and its name for messages; "-" is stdin.
func ReadFile(path string, stdin io.Reader) (file string, data []byte, err error) {
	file = path
	if path == "-" {
		file = "stdin"
		data, err = io.ReadAll(io.LimitReader(stdin, maxFile+1))
	} else {
		data, err = os.ReadFile(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, fmt.Errorf("cluster file %s: %w", path, errs.NotFound)
	case err != nil:
		return "", nil, fmt.Errorf("cannot read cluster file: %w", err)
	case len(data) > maxFile:
		return "", nil, fmt.Errorf("cluster file %s has more than %d bytes: %w", file, maxFile, errs.Invalid)
	}
	return file, data, nil
}

// Load reads a cluster file in either format and checks it. The error is manifest.Faults: all of
// them, each with its place. file is for them only.
func Load(file string, data []byte, o Options) (*Cluster, error) {
	version, kind, r := manifest.Meta(file, data)
	if r.Err() != nil {
		return nil, r.Err()
	}
	switch version {
	case KindAPIVersion:
		var k kindCluster
		k.Networking = defaultNetworking()
		// kind's reader is less strict about scalars than ours.
		r = manifest.ReadPlain(file, data, &k)
		return finish(k.model(), r, o)
	case APIVersion:
		if kind == "Node" {
			r.Fault("kind", "%q is for `berth node`; want Cluster", kind)
			return nil, r.Err()
		}
		c := defaults()
		c.APIVersion, c.Kind = "", ""
		return finish(c, manifest.Read(file, data, c), o)
	case "":
		r.Fault("apiVersion", "is missing; want %s, or kind's %s", APIVersion, KindAPIVersion)
	default:
		r.Fault("apiVersion", "unknown apiVersion: %q; want %s, or kind's %s", version, APIVersion, KindAPIVersion)
	}
	return nil, r.Err()
}

// Default returns the cluster that is created without a cluster file: one control plane.
func Default(o Options) (*Cluster, error) {
	version := APIVersion
	if o.OfKind {
		version = KindAPIVersion
	}
	return Load("", []byte("apiVersion: "+version+"\nkind: "+Kind+"\n"), o)
}

func defaultNetworking() Networking {
	return Networking{IPFamily: IPv4, KubeProxyMode: ProxyIPTables}
}

// defaults is the cluster file with all defaults.
func defaults() *Cluster {
	return &Cluster{
		APIVersion: APIVersion,
		Kind:       Kind,
		Settings:   Settings{Networking: defaultNetworking()},
		Registry:   BuiltIn{Port: 5001},
	}
}

// finish fills in defaults, checks, and adds the pools' nodes to the others.
func finish(c *Cluster, r *manifest.Reader, o Options) (*Cluster, error) {
	name := DefaultName
	if c.FromKind {
		name = DefaultKindName
	}
	c.Name = cmp.Or(o.Name, c.Name, name)
	if len(c.Nodes) == 0 && !slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.Role == ControlPlane }) {
		c.Nodes = []Node{{}}
	}
	c.Networking.settle()
	ch := checker{r, c, o}
	for _, p := range c.parts() {
		p.settle(o)
		ch.absolute(p)
	}
	registries.SetDefaults(c.Registries)
	ch.files("registries", c.Registries)
	c.nameNodes()
	ch.all()
	if err := r.Err(); err != nil {
		return nil, err
	}
	c.expand()
	return c, nil
}

// settle fills in the defaults of a node or pool.
func (p part) settle(o Options) {
	n := p.NodeSettings
	n.Image = cmp.Or(o.Image, n.Image, DefaultImage)
	if n.Role == "" {
		n.Role = ControlPlane
		if p.pool != nil {
			n.Role = Worker
		}
	}
	for i := range n.ExtraMounts {
		n.ExtraMounts[i].Propagation = cmp.Or(n.ExtraMounts[i].Propagation, PropagateNone)
	}
	for i := range n.ExtraPortMappings {
		n.ExtraPortMappings[i].Protocol = cmp.Or(n.ExtraPortMappings[i].Protocol, TCP)
	}
	registries.SetDefaults(*p.registries)
}

// absolute makes the host paths of a node or pool absolute.
func (c checker) absolute(p part) {
	for i := range p.ExtraMounts {
		at := fmt.Sprintf("%s.extraMounts[%d].hostPath", p.at, i)
		if host := p.ExtraMounts[i].HostPath; host == "~" || strings.HasPrefix(host, "~/") {
			c.Fault(at, "%q: ~ is not expanded in a file; write the directory out", host)
			continue
		}
		c.resolve(at, &p.ExtraMounts[i].HostPath)
	}
	c.files(p.at+".registries", *p.registries)
}

func (c checker) resolve(at string, path *string) {
	if *path == "" {
		return
	}
	from := *path
	if !filepath.IsAbs(from) {
		from = filepath.Join(c.o.Dir, from)
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		c.Fault(at, "unable to resolve absolute path for hostPath: %q: %v", *path, err)
		return
	}
	*path = abs
}

// files makes the paths absolute that registries name.
func (c checker) files(at string, all []registries.Registry) {
	for i := range all {
		reg, at := &all[i], fmt.Sprintf("%s[%d]", at, i)
		c.accessFiles(at, &reg.Access)
		for j := range reg.Mirrors {
			c.accessFiles(fmt.Sprintf("%s.mirrors[%d]", at, j), &reg.Mirrors[j].Access)
		}
	}
}

// accessFiles makes the paths absolute of the files that a server is reached with.
func (c checker) accessFiles(at string, a *registries.Access) {
	for i := range a.CA {
		c.resolve(fmt.Sprintf("%s.ca[%d]", at, i), &a.CA[i])
	}
	c.resolve(at+".clientCert", &a.ClientCert)
	c.resolve(at+".clientKey", &a.ClientKey)
	c.resolve(at+".credentials", &a.Credentials)
}

// Schema is the JSON schema of a description.
func Schema() []byte { return manifest.Schema("Cluster of "+APIVersion, defaults()) }

// Sample renders a cluster file with help as comments: one control plane, and all fields.
func Sample() string {
	c := defaults()
	c.Nodes = []Node{{NodeSettings: NodeSettings{Role: ControlPlane}}}
	return manifest.Sample(c)
}

// Reference renders the page of every field.
func Reference() string {
	return "# The cluster file, field by field\n\n" +
		"<!-- Made by `make generate` from internal/cluster/config. Do not edit. -->\n\n" +
		"docs/cluster.md explains the files; docs/cluster.schema.json is the JSON schema. Files of kind\n" +
		"(`apiVersion: " + KindAPIVersion + "`) have the same fields but `pools`, `registry`, `registries`, `disableDefaultStorage` and the names of nodes.\n\n" +
		manifest.Reference(defaults())
}
