package facts

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// sourced is an asset and its path in the node file.
type sourced struct {
	at string
	nodefile.Asset
}

// sourcesOf lists all that a description fetches, image archives too.
func sourcesOf(n *nodefile.Node) []sourced {
	var list []sourced
	for _, part := range []struct {
		at     string
		assets []nodefile.Asset
	}{{"runtime.assets", n.Runtime.Assets}, {"network.plugins", n.Network.Plugins}, {"kubelet.assets", n.Kubelet.Assets}} {
		for i, asset := range part.assets {
			list = append(list, sourced{fmt.Sprintf("%s[%d]", part.at, i), asset})
		}
	}
	for i, f := range n.Files {
		if f.Source != nil {
			list = append(list, sourced{fmt.Sprintf("files[%d].source", i), *f.Source})
		}
	}
	for i, image := range n.Images {
		list = append(list, sourced{fmt.Sprintf("images[%d]", i), nodefile.Asset{
			Source: image.Source, Mirrors: image.Mirrors, Digest: image.Digest, Arch: image.Arch, Access: image.Access,
		}})
	}
	return list
}

// CheckSources refuses assets without a digest whose source is a path and not a directory. It reads
// the machine where berth runs, as fetching does.
func CheckSources(n *nodefile.Node) nodefile.FieldErrors {
	var faults nodefile.FieldErrors
	for _, s := range sourcesOf(n) {
		if s.Digest != "" || !filepath.IsAbs(s.Source) || s.Arch != "" && s.Arch != goruntime.GOARCH {
			continue
		}
		info, err := os.Stat(s.Source)
		switch {
		case err != nil:
			faults = append(faults, nodefile.NewFieldError(errs.NotFound, s.at+".source", "%s cannot be looked at: %v; want a directory, or a file with its digest", s.Source, err))
		case !info.IsDir():
			faults = append(faults, nodefile.NewFieldError(errs.Invalid, s.at+".digest", "is missing, and %s is not a directory; want sha256: or sha512: and its hash", s.Source))
		}
	}
	return faults
}

// named is a file with credentials and its path in the node file.
type named struct{ at, file string }

// registryCredentials are those whose content goes into the runtime's configuration.
func registryCredentials(n *nodefile.Node) []named {
	var list []named
	for i, reg := range n.Registries {
		list = append(list, named{fmt.Sprintf("registries[%d].credentials", i), reg.Credentials})
		for j, m := range reg.Mirrors {
			list = append(list, named{fmt.Sprintf("registries[%d].mirrors[%d].credentials", i, j), m.Credentials})
		}
	}
	return list
}

// assetCredentials are those that assets are fetched with.
func assetCredentials(n *nodefile.Node) []named {
	var list []named
	for _, s := range sourcesOf(n) {
		list = append(list, named{s.at + ".credentials", s.Credentials})
	}
	return list
}

// readCredentials maps files to their content.
func readCredentials(file func(name string) ([]byte, error), list []named) (map[string]string, nodefile.FieldErrors) {
	found := map[string]string{}
	var faults nodefile.FieldErrors
	for _, c := range list {
		if _, known := found[c.file]; known || c.file == "" {
			continue
		}
		data, err := file(c.file)
		found[c.file] = string(data)
		if err != nil {
			faults = append(faults, nodefile.NewFieldError(errs.NotFound, c.at, "%v; want a file with credentials", err))
		}
	}
	return found, faults
}
