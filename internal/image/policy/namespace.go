package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/errs"
)

// suffix is what follows the namespace in the name of its file.
const suffix = ".json"

// FileOf returns the policy file of a namespace of Kubernetes: DIR/NAMESPACE.json. It is "" if the directory has none. A
// link that leads nowhere counts as a file, and a directory that cannot be read is an error: no policy is missed by mistake.
func FileOf(dir, namespace string) (string, error) {
	if err := checkNamespace(namespace); err != nil {
		return "", err
	}
	file := filepath.Join(dir, namespace+suffix)
	_, err := os.Lstat(file)
	if err == nil {
		return file, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.ReadDir(dir)
	}
	if err != nil {
		return "", fmt.Errorf("cannot look for the image policy of namespace %s: %w", namespace, err)
	}
	return "", nil
}

// CheckDir returns the faults of a directory of policies, and of each file in it.
func CheckDir(dir string) []error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []error{fmt.Errorf("cannot read the directory: %w", err)}
	}
	var faults []error
	for _, entry := range entries {
		namespace, ok := strings.CutSuffix(entry.Name(), suffix)
		if !ok {
			continue
		}
		if err := checkNamespace(namespace); err != nil {
			faults = append(faults, fmt.Errorf("%s is not used: %w", filepath.Join(dir, entry.Name()), err))
		} else if p, err := Read(filepath.Join(dir, entry.Name())); err != nil {
			faults = append(faults, err)
		} else {
			faults = append(faults, p.CheckKeys()...)
		}
	}
	return faults
}

// checkNamespace refuses what is not the name of a namespace: it would be a path.
func checkNamespace(name string) error {
	if why := validation.IsDNS1123Label(name); len(why) > 0 {
		return fmt.Errorf("%q is not the name of a namespace: %s: %w", name, strings.Join(why, "; "), errs.Invalid)
	}
	return nil
}
