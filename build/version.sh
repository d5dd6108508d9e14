#!/bin/bash
# version.sh: prints the version of this commit. At a tag v1.2.3 it is 1.2.3. N commits after that
# it is 1.2.4-dev.N, which sorts between the two. Without a tag, the last release of
# build/releases.txt before this commit counts as one.
set -euo pipefail
cd "$(dirname "$0")/.."
tag='' after=0
if described=$(git describe --tags --long --match 'v[0-9]*' 2> /dev/null); then
  tag=${described%-*-g*}
  after=${described#"$tag-"}
  after=${after%-g*}
else
  while read -r name commit _; do
    case $name in v[0-9]*) ;; *) continue ;; esac
    ! git merge-base --is-ancestor "$commit" HEAD 2> /dev/null || { tag=$name commit_of=$commit; }
  done < <(cat build/releases.txt 2> /dev/null)
  [ -z "$tag" ] || after=$(git rev-list --count "$commit_of..HEAD")
fi
version=${tag#v}
[[ $version =~ ^[0-9]+\.[0-9]+$ ]] && version+=.0
if [ -z "$tag" ]; then
  echo 0.1.0-dev
elif [ "$after" = 0 ]; then
  echo "$version"
elif [[ $version =~ ^([0-9]+\.[0-9]+)\.([0-9]+)$ ]]; then
  echo "${BASH_REMATCH[1]}.$((BASH_REMATCH[2] + 1))-dev.$after"
else
  echo "$version.dev.$after" # after a pre-release such as 1.2.3-rc.1
fi
