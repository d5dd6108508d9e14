package config

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/manifest"
)

// checker reports what the tags cannot check. It uses paths of the document; the reader knows their
// lines.
type checker struct {
	*manifest.Reader
	c *Cluster
	o Options
}

func (c checker) all() {
	c.names()
	c.networking()
	c.gates()
	c.ports()
	if c.o.Image != "" {
		c.image("", c.o.Image)
	}
	for _, p := range c.c.parts() {
		if c.o.Image == "" {
			c.image(p.at+".image", p.Image)
		}
		c.labels(p.at, p.Labels)
		c.mounts(p)
		c.registries(p.at+".registries", *p.registries)
	}
	c.registries("registries", c.c.Registries)
	c.builtIn()
	c.patches()
}

// warn reports an odd setting, with its line.
func (c checker) warn(at, format string, args ...any) {
	w := manifest.Fault{File: c.File(), Path: at, Problem: fmt.Sprintf(format, args...)}
	w.Line, w.Column = c.Place(at)
	c.c.Warnings = append(c.c.Warnings, w)
}

// maxNodeName is the limit of a label's value, in characters: kubernetes.io/hostname has the name. It is
// also that of a label of a host name in DNS, by which control planes reach the load balancer.
const maxNodeName = validation.LabelValueMaxLength

// maxPool bounds a pool; more nodes than that are a typing error.
const maxPool = 250

// names checks the cluster's name and those that it gives to nodes.
func (c checker) names() {
	const want = "want small letters, digits, - and ., a letter or digit at both ends"
	at := "name"
	if c.o.Name != "" {
		at = "" // the line of the document's own name would mislead
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`).MatchString(c.c.Name) {
		if !c.Broken("name") {
			c.Fault(at, "%q is not a valid cluster name; %s", c.c.Name, want)
		}
		return
	}
	taken := map[string]string{c.c.BalancerName(): "the load balancer", RegistryName: "the registry"}
	planes := 0
	check := func(at, label string) {
		full := c.c.ContainerName(Node{Name: label})
		switch other, found := taken[full]; {
		case len(full) > maxNodeName:
			c.Fault(at, "%q: a node's name has at most %d letters; this one has %d, so the cluster's or the node's must be shorter", full, maxNodeName, len(full))
		case len(validation.IsDNS1123Subdomain(full)) > 0:
			c.Fault(at, "%q is not a valid node name; %s", full, want)
		case found:
			c.Fault(at, "%q: is the name of %s, too", full, other)
		}
		taken[full] = at
	}
	for i, n := range c.c.Nodes {
		at := fmt.Sprintf("nodes[%d]", i)
		if c.Has(at + ".name") {
			at += ".name"
		}
		check(at, n.Name)
		if n.Role == ControlPlane {
			planes++
		}
	}
	for i, p := range c.c.Pools {
		at := fmt.Sprintf("pools[%d]", i)
		if p.Size() < 0 || p.Size() > maxPool {
			c.Fault(at+".count", "%d: want 0 to %d", p.Size(), maxPool)
			continue
		}
		for number := range p.Size() {
			if p.Name != "" {
				check(at+".name", numbered(p.Name, number+1))
			}
		}
		if p.Role == ControlPlane {
			planes += p.Size()
		}
	}
	if full := c.c.BalancerName(); planes > 1 && len(full) > maxNodeName {
		c.Fault(at, "%q: the load balancer of several control planes has a name of at most %d letters; this one has %d, so the cluster's must be shorter", full, maxNodeName, len(full))
	}
	if planes == 0 && !c.Broken("nodes") && !c.Broken("pools") {
		c.Fault("nodes", "must have at least one control-plane node")
	}
}

func (c checker) image(at, image string) {
	if _, err := reference.ParseAnyReference(image); err != nil {
		c.Fault(at, "%q is not an image name: %v", image, err)
	}
}

// labels refuses labels with which the kubelet would not start.
func (c checker) labels(at string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := manifest.Key(at+".labels", key)
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			c.Fault(at, "%q is not a label: %s", key, problems[0])
			continue
		}
		if problems := validation.IsValidLabelValue(labels[key]); len(problems) > 0 {
			c.Fault(at, "%q cannot be a label's value: %s", labels[key], problems[0])
		}
		if prefix, _, found := strings.Cut(key, "/"); found && reserved(prefix) && !ofKubelet(key, prefix) {
			c.Fault(at, "a kubelet may not give itself labels of %s; give this one with kubectl label", prefix)
		}
	}
}

// reserved reports whether a label's prefix is Kubernetes' own.
func reserved(prefix string) bool {
	for _, domain := range []string{"kubernetes.io", "k8s.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return true
		}
	}
	return false
}

// ofKubelet reports whether a kubelet may set a reserved label of its own node, as
// k8s.io/kubelet's list of labels has it.
func ofKubelet(key, prefix string) bool {
	for _, own := range []string{"kubelet.kubernetes.io", "node.kubernetes.io"} {
		if prefix == own || strings.HasSuffix(prefix, "."+own) {
			return true
		}
	}
	return slices.Contains([]string{
		"kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
		"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	}, key)
}

func (c checker) mounts(p part) {
	seen := map[string]bool{}
	for i, m := range p.ExtraMounts {
		at := fmt.Sprintf("%s.extraMounts[%d]", p.at, i)
		clean := path.Clean(m.ContainerPath)
		switch inside := at + ".containerPath"; {
		case m.ContainerPath == "" || c.Broken(inside):
		case !path.IsAbs(m.ContainerPath) || clean == "/":
			c.Fault(inside, "%q: want an absolute path other than /", m.ContainerPath)
		case strings.Contains(m.ContainerPath, ":"):
			c.Fault(inside, "%q: container engines take a path with : apart", m.ContainerPath)
		case seen[clean]:
			c.Fault(inside, "%q: is there twice", clean)
		}
		seen[clean] = true
		if strings.Contains(m.HostPath, ":") {
			c.Fault(at+".hostPath", "%q: container engines take a path with : apart", m.HostPath)
		}
	}
}

// gates checks what ends up in comma-separated options.
func (c checker) gates() {
	for _, name := range slices.Sorted(maps.Keys(c.c.FeatureGates)) {
		if !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`).MatchString(name) {
			c.Fault(manifest.Key("featureGates", name), "%q is not a feature gate", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.c.RuntimeConfig)) {
		at := manifest.Key("runtimeConfig", name)
		if name == "" || strings.ContainsAny(name, "=, \t") {
			c.Fault(at, "%q: want a group and version such as batch/v1, or api/all", name)
		}
		value := c.c.RuntimeConfig[name]
		if _, err := strconv.ParseBool(value); err != nil && value != "" { // the API server takes it for true
			c.Fault(at, "%q: want true or false", value)
		}
	}
}
