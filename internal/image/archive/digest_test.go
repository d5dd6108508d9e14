package archive

import (
	"strings"
	"testing"
)

// Only a valid digest as the file name makes the content known by that digest. All other files of
// an archive are identified by their content.
func TestHostileNamesHaveNoDigest(t *testing.T) {
	hex := strings.Repeat("a", 64)
	for _, name := range []string{
		"blobs/sha256/../../x", "blobs/sha256/../sha256/" + hex, "../blobs/sha256/" + hex, "/blobs/sha256/" + hex, "blobs/sha256/" + hex + "/x",
		"blobs/sha256/" + strings.ToUpper(hex), "blobs/sha256/" + hex[1:], "blobs/sha256/" + hex + "a", "blobs/sha512/" + hex, "blobs/sha1/" + hex[:40],
		"blobs/SHA256/" + hex, "blobs/sha256/" + hex + "\n", "blobs/sha256/" + hex[1:] + "\x00", "blobs//sha256/" + hex, "blobs/sha256/", "",
		"../" + hex + ".json", hex + ".json.json", hex[1:] + ".json", strings.ToUpper(hex) + ".json", "x/" + hex + ".json", ".json",
	} {
		if got := digestInName(name); got != "" {
			t.Errorf("%q promises %q", name, got)
		}
	}
	for _, name := range []string{"blobs/sha256/" + hex, hex + ".json"} {
		if got := digestInName(name); got.Validate() != nil || got.Encoded() != hex {
			t.Errorf("%q promises %q", name, got)
		}
	}
}
