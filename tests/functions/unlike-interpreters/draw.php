<?php
while (fgets(STDIN)) {
    echo json_encode([
        'random_int' => random_int(0, PHP_INT_MAX), 'random_bytes' => bin2hex(random_bytes(8)),
        'mt_rand' => mt_rand(), 'lcg_value' => lcg_value(),
    ]), "\n";
}
