// Items in memory, by a controller of NestJS. Decorators are called as functions.
require('reflect-metadata');
const { Controller, Get, Module, Param, Post } = require('@nestjs/common');
const { NestFactory } = require('@nestjs/core');

const items = [];

class Items {
  hello() {
    return 'hello of NestJS';
  }

  all() {
    return items;
  }

  add(name) {
    items.push(name);
    return items;
  }
}

function route(decorator, method) {
  decorator(Items.prototype, method, Object.getOwnPropertyDescriptor(Items.prototype, method));
}

Controller()(Items);
route(Get('/'), 'hello');
route(Get('/items'), 'all');
route(Post('/items/:name'), 'add');
Param('name')(Items.prototype, 'add', 0);

class Main {}
Module({ controllers: [Items] })(Main);

NestFactory.create(Main).then((app) => app.listen(process.env.PORT, '127.0.0.1'));
