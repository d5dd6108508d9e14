package labels

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestConflict(t *testing.T) {
	for name, text := range map[string]string{
		"Docker": `Conflict. The container name "/k8s_POD_p_n_u_0" is already in use by container "` + dockerID +
			`". You have to remove (or rename) that container to be able to reuse that name.`,
		"Docker 1.12": `Conflict. The container name "/k8s_POD_p_n_u_0" is already in use by container ` + dockerID +
			`. You have to remove (or rename) that container to be able to reuse that name.`,
		"a renaming": `Error when allocating new name: Conflict. The container name "/a" is already in use by container "` +
			dockerID + `". You have to remove (or rename) that container to be able to reuse that name.`,
		"podman": `creating container storage: the container name "k8s_POD_p_n_u_0" is already in use by ` + dockerID +
			`. You have to remove that container to be able to reuse that name: that name is already in use`,
		"podman 1": `error creating container storage: the container name "a" is already in use by "` + dockerID +
			`". You have to remove that container to be able to reuse that name.: that name is already in use`,
	} {
		err := fmt.Errorf("docker create container: Error response from daemon: %s: %w", text, errs.Exists)
		if got, ok := Conflict(err); !ok || got != dockerID {
			t.Errorf("%s: got %q, %v", name, got, ok)
		}
	}
	for name, err := range map[string]error{
		"no error":         nil,
		"another conflict": fmt.Errorf("removal of container %s is already in progress: %w", dockerID, errs.Exists),
		"no id":            errors.New(`Conflict. The container name "/a" is already in use by container "".`),
		"a short id":       errors.New(`Conflict. The container name "/a" is already in use by container "9e0bb9943941".`),
		"a longer id":      errors.New(`Conflict. The container name "/a" is already in use by container "` + dockerID + `0".`),
		"another object":   errors.New(`The volume "/a" is already in use by container "` + dockerID + `".`),
	} {
		if got, ok := Conflict(err); ok {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
