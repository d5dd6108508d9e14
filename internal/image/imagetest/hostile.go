package imagetest

import "strings"

// HostileDigests are digests that lead out of a directory of blobs, or that other tools read in
// another way.
func HostileDigests() []string {
	hex := strings.Repeat("a", 64)
	return []string{
		"sha256:../../x", "sha256:../../../../../../etc/passwd", "sha256:/etc/passwd", "../sha256:" + hex, "sha256/../..:" + hex,
		"sha256:" + strings.ToUpper(hex), "SHA256:" + hex, "sha256:" + hex[1:], "sha256:" + hex + "a", "sha256:" + hex[2:] + "/x",
		"sha256:" + hex + "\n", " sha256:" + hex, "sha256:" + hex[1:] + "\x00", "sha256:" + hex[3:] + "%2f", "sha256:", ":", ":" + hex, hex,
		"sha1:" + hex[:40], "md5:" + hex[:32], "sha256+b64:" + hex, "sha512:" + hex, ".:" + hex, "..:..", "sha256:sha256:" + hex,
	}
}
