#!/bin/sh
# Run by systemd inside the machine of test_boot.py; what it prints is what the test looks at.
exec >/result 2>&1
ask='import os, urllib.request as u
r = u.Request("http://127.0.0.1:8000/v1/models", headers={"authorization": "Bearer " + os.environ.get("KEY", "")})
try:
    print(u.urlopen(r).status)
except u.HTTPError as e:
    print(e.code)'
ask() { echo "$1 $(KEY=$2 python3 -c "$ask")"; }
of() { systemctl show --property="$1" --value ortolan; }

echo "state $(of ActiveState)"
ask without-keys
pid=$(of MainPID)
grep -E '^(NoNewPrivs|Seccomp|CapEff):' "/proc/$pid/status"
kill -9 "$pid"
until [ "$(of NRestarts)" = 1 ] && [ "$(of ActiveState)" = active ]; do sleep 0.2; done
ask after-a-kill
key=$(runuser -u ortolan -- /opt/ortolan/bin/ortolan keys add laptop --file /var/lib/ortolan/keys.json 2>/dev/null)
sleep 2
ask without-a-key
ask with-a-key "$key"
systemctl stop ortolan
echo "result $(of Result) $(of ExecMainStatus)"
ls /var/lib/ortolan /var/log/ortolan
echo over
