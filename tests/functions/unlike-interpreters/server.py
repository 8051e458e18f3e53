"""Answers with what programs beside it draw: each writes a line, a JSON object, for each that it reads."""

import json
import os
import subprocess
from http.server import HTTPServer

from drawing import serve

RUBY = "/app/usr/lib/ruby"
ENVIRONMENT = {
    **os.environ,
    "LD_LIBRARY_PATH": "/app/usr/lib/x86_64-linux-gnu:/app/lib/x86_64-linux-gnu",
    "RUBYLIB": f"{RUBY}/3.1.0:/app/usr/lib/x86_64-linux-gnu/ruby/3.1.0:{RUBY}/vendor_ruby",
    "PERL5LIB": "/app/usr/lib/x86_64-linux-gnu/perl-base",
}
COMMANDS = {
    "Ruby": ["/app/usr/bin/ruby3.1", "--disable-gems", "draw.rb"],
    "Perl": ["/app/usr/bin/perl", "draw.pl"],
    "Lua": ["/app/usr/bin/lua5.4", "draw.lua"],
    "PHP": ["/app/usr/bin/php8.2", "-n", "draw.php"],
    "C": ["./draw"],
}
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": ENVIRONMENT}
programs = {name: subprocess.Popen(command, **pipes) for name, command in COMMANDS.items()}


def draw():
    drawn = {}
    for name, program in programs.items():
        program.stdin.write(b"\n")
        program.stdin.flush()
        answer = json.loads(program.stdout.readline())
        drawn |= {f"{name} {source}": value for source, value in answer.items()}
    return drawn


serve(draw, HTTPServer)
